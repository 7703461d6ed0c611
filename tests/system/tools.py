"""Programs that tests start and that are no part of Sluice: where they are, and what it means that they are not."""

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

# `make test` says where; a test that is started by hand finds what an earlier `make test` left.
NPM_MODULES = Path(os.environ.get("NODE_PATH") or Path(__file__).parents[2] / "build/npm/node_modules")


def program(name: str) -> str:
    """The path of a program. Skips the test where there is none, which in CI is a failure."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed (`make test` does it where it may)")
    assert found is not None
    return found


def npm_modules() -> Path:
    """The folder with MQTT.js, as `program` gives a program."""
    if not (NPM_MODULES / "mqtt").is_dir():
        missing("MQTT.js is not installed (`make test` does it where it may)")
    return NPM_MODULES


def module(name: str) -> ModuleType:
    """A module of a package that only tests need, as `program` gives a program."""
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(f"{name} is not installed (`make install` does it)")
        raise


def missing(why: str) -> None:
    """Skip the test, which in CI is a failure."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
