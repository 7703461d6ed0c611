"""The installed version of Sluice, and which of its modules are compiled."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "sluicemq"  # the name for `pip install`
# Packages with compiled modules: those in `compiled.txt` and the Cython extensions.
PACKAGES: Final = ("gateway", "matcher", "notify", "record", "store")


def release() -> str:
    """Return the installed version of Sluice, or "unreleased" in a source tree that was never installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unreleased"


def compiled_modules() -> list[str]:
    """Return the sorted dotted names of the modules with compiled code beside their source."""
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
            # ".so" also matches ".cpython-311-x86_64-linux-gnu.so". A "__mypyc" file is a library that modules share.
            if "." not in stem and not stem.endswith("__mypyc"):
                names.append(f"{package}.{stem.replace('/', '.')}")
    return names
