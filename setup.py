"""Builds the compiled kernel: `CYTHON` with Cython, the hot modules of `compiled.txt` with mypyc.

Both halves are optional. Where there is no working C compiler, or `SLUICE_PURE=1` is set, the same
sources are installed and run as plain Python. A mypyc *type* error is a bug and does fail the build.
"""

import os
import shlex
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from subprocess import DEVNULL, run
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
LIBRARY = "matcher._kernel"  # what mypyc makes; it lies in the package that every hot module may import
CYTHON = (
    "gateway/listen/_streams.pyx",
    "record/_blocks.pyx",
    "record/_frames.pyx",
    "store/log/_flush_queue.pyx",
    "store/views/queues/_tails.pyx",
)
# Commands that compile. A build backend also runs this file for metadata alone, which needs no C.
COMPILING = frozenset({"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"})
JOBS = len(os.sched_getaffinity(0))


def main() -> None:
    os.chdir(ROOT)
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernel})


def extensions() -> list[Extension]:
    if os.environ.get("SLUICE_PURE") == "1" or COMPILING.isdisjoint(sys.argv):
        return []
    if not compiler_works():
        progress("no working C compiler with Python headers: it runs uncompiled")
        return []
    return mypyc_extensions() + cython_extensions()


def compiler_works() -> bool:
    """Whether the compiler that setuptools will call can compile a file that includes Python.h."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_VERSION_HEX != 0; }\n")
        try:
            probe = [*command, "-fPIC", f"-I{include}", "-c", str(source), "-o", str(Path(folder, "probe.o"))]
            return run(probe, check=False, stdout=DEVNULL, stderr=DEVNULL).returncode == 0
        except OSError:
            return False


def cython_extensions() -> list[Extension]:
    from Cython.Build import cythonize  # noqa: PLC0415  only where something is compiled

    flags = ["-O3", "-g0", "-fno-strict-aliasing", "-Wno-sign-compare"]
    names = {path: path.removesuffix(".pyx").replace("/", ".") for path in CYTHON}
    modules = [Extension(name, [path], extra_compile_args=flags) for path, name in names.items()]
    return list(cythonize(modules, language_level=3, build_dir="build/cython", quiet=True))


def hot_modules() -> list[str]:
    """The files that `compiled.txt` names. A package's `__init__` stays Python: it holds words, not work."""
    lines = [line.strip() for line in Path("compiled.txt").read_text(encoding="utf-8").splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")]
    found = {path.as_posix() for pattern in patterns for path in Path().glob(pattern)}
    return sorted(path for path in found if not path.endswith("__init__.py"))


def mypyc_extensions() -> list[Extension]:
    import mypyc  # noqa: PLC0415  only where something is compiled
    from mypyc.build import mypycify  # noqa: PLC0415

    # No config file, silent imports, missing ones allowed: the isolated build environment has none of the
    # run-time dependencies. `make lint` is where types are judged.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--python-version=3.11"]
    modules = hot_modules()
    progress(f"translating {len(modules)} modules to C")
    with redirect_stdout(sys.stderr):  # mypyc's notes
        built: list[Extension] = mypycify(
            [*options, *modules],
            # At -O2 and -O3 gcc takes a third longer, and no benchmark runs faster: most of the time goes into calls
            # of Python's C API.
            opt_level="1",
            debug_level="0",
            multi_file=True,  # a C file for each module: all cores work, and none needs much memory
            group_name=LIBRARY,
        )
    headers = Path("build", *LIBRARY.split(".")[:-1])
    runtime = Path(mypyc.__file__).parent / "lib-rt"
    for extension in built:
        # mypyc makes warnings errors: another compiler's warnings would leave the kernel unbuilt.
        extension.extra_compile_args = [*extension.extra_compile_args, "-Wno-error"]
        extension.include_dirs.append(headers.as_posix())
        extension.depends = [path.as_posix() for folder in (headers, runtime) for path in folder.glob("*.h")]
    return built


class BuildKernel(build_ext):
    """Builds all extensions or none, on all cores: half a mypyc library cannot be imported."""

    def build_extensions(self) -> None:
        self.parallel = JOBS + 1  # extensions: a thread waits for the C files of its extension, then links them
        self._compile_files = self.compiler.compile
        self.compiler.compile = self._compile_in_parallel
        self._total = sum(size(source) for each in self.extensions for source in each.sources)
        self._done = 0
        try:
            with ThreadPoolExecutor(JOBS) as self._jobs:
                super().build_extensions()
        except Exception as error:  # noqa: BLE001  setuptools wraps compilers' failures in many types
            progress(f"compiling failed, it runs uncompiled: {error}")
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
                extension.optional = True

    def _compile_in_parallel(self, sources: list[str], **options: Any) -> list[str]:
        """Compile each file as a job of its own, the largest first; return the object files."""
        files = sorted(sources, key=size, reverse=True)
        return list(self._jobs.map(lambda file: self._compile_file(file, options), files))

    def _compile_file(self, source: str, options: dict[str, Any]) -> str:
        """Compile one C file, unless its object is newer: an edit changes the C of few modules."""
        name: str = self.compiler.object_filenames([source], output_dir=options["output_dir"])[0]
        changed = max(Path(file).stat().st_mtime for file in (source, *options["depends"]))
        if not Path(name).exists() or Path(name).stat().st_mtime <= changed:
            self._compile_files([source], **options)
        before = self._done
        self._done += size(source)
        if (tenths := self._done * 10 // self._total) != before * 10 // self._total:
            progress(f"compiling: {tenths}0 %")
        return name


def size(path: str) -> int:
    return Path(path).stat().st_size


def progress(text: str) -> None:
    print(f"kernel: {text}", flush=True)


main()
