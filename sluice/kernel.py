"""What of the kernel is compiled in this installation."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "sluicemq"  # what `pip install` calls Sluice
# The packages that hold hot modules: those of `compiled.txt`, and of the Cython extensions.
PACKAGES: Final = ("gateway", "matcher", "notify", "record", "store")


def release() -> str:
    """The installed version of Sluice, or "unreleased" in a tree that was never installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unreleased"


def compiled_modules() -> list[str]:
    """Dotted names of the modules that have compiled code beside their source, sorted."""
    found: set[str] = set()
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found.update(_compiled_in(package, Path(folder)))
    return sorted(found)


def _compiled_in(package: str, folder: Path) -> list[str]:
    names = []
    for suffix in EXTENSION_SUFFIXES:
        for path in folder.rglob(f"*{suffix}"):
            stem = path.relative_to(folder).as_posix().removesuffix(suffix)
            # ".so" also ends ".cpython-311-x86_64-linux-gnu.so"; "__mypyc" is the library behind the modules.
            if "." not in stem and not stem.endswith("__mypyc"):
                names.append(f"{package}.{stem.replace('/', '.')}")
    return names
