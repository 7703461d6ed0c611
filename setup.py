"""Builds the compiled kernel: `CYTHON` with Cython, the hot modules of `compiled.txt` with mypyc.

Both halves are optional. Where there is no working C compiler, or `SLUICE_PURE=1` is set, the same
sources are installed and run as plain Python. A mypyc *type* error is a bug and does fail the build.
"""

import os
import shlex
import sys
import sysconfig
import tempfile
from pathlib import Path
from subprocess import DEVNULL, run

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
CYTHON = ("gateway/listen/_streams.pyx", "record/_frames.pyx", "store/views/_tails.pyx")
LIBRARIES = ("matcher._kernel", "matcher._sessions")  # one for each paragraph of `compiled.txt`


def main() -> None:
    os.chdir(ROOT)
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernel})


def extensions() -> list[Extension]:
    if os.environ.get("SLUICE_PURE") == "1":
        return []
    if not compiler_works():
        print("sluice: no working C compiler with Python headers: the kernel runs uncompiled", file=sys.stderr)
        return []
    return cython_extensions() + mypyc_extensions()


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

    flags = ["-O3", "-g0", "-fno-strict-aliasing"]
    modules = [
        Extension(path.removesuffix(".pyx").replace("/", "."), [path], extra_compile_args=flags)
        for path in CYTHON
        if Path(path).exists()
    ]
    return list(cythonize(modules, language_level=3, build_dir="build/cython", quiet=True))


def hot_modules() -> list[list[str]]:
    """The files that each paragraph of `compiled.txt` names. A package's `__init__` stays Python: it holds words, not
    work."""
    groups: list[list[str]] = []
    for paragraph in Path("compiled.txt").read_text(encoding="utf-8").split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        patterns = [line for line in lines if line and not line.startswith("#")]
        found = {path.as_posix() for pattern in patterns for path in Path().glob(pattern)}
        groups.append(sorted(path for path in found if not path.endswith("__init__.py")))
    return groups


def mypyc_extensions() -> list[Extension]:
    groups = hot_modules()
    from mypyc.build import mypycify  # noqa: PLC0415  only where something is compiled

    # No config file, silent imports, missing ones allowed: the isolated build environment has none of the
    # run-time dependencies. `make lint` is where types are judged.
    # The groups' shared libraries lie in the package that every hot module may import, the leaf `matcher`.
    options = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", "--python-version=3.11"]
    modules = [path for group in groups for path in group]
    named = list(zip(groups, LIBRARIES, strict=True))
    built = mypycify([*options, *modules], opt_level="3", debug_level="0", separate=named)
    for extension in built:
        # mypyc makes warnings errors: another compiler's warnings would leave the kernel unbuilt.
        extension.extra_compile_args = [*extension.extra_compile_args, "-Wno-error"]
    return list(built)


class BuildKernel(build_ext):
    """Builds all extensions or none: half a mypyc group cannot be imported."""

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except Exception as error:  # noqa: BLE001  setuptools wraps compilers' failures in many types
            print(f"sluice: compiling failed, the kernel runs uncompiled: {error}", file=sys.stderr)
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
                extension.optional = True


main()
