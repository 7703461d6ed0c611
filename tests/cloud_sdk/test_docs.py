"""docs/sdk.md names all that is public, and nothing that there is not; the blocking face has what the other has."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import cloud_sdk
import record
from cloud_sdk import blocking

DOCS = Path(__file__).parent.parent.parent / "docs" / "sdk.md"
CODE = re.findall(r"```.*?```|`[^`]+`", DOCS.read_text(encoding="utf-8"), re.DOTALL)
NAMED = frozenset(word for code in CODE for word in re.findall(r"\w+", code))
CALLED = frozenset(word for code in CODE for word in re.findall(r"(\w+)\(", code))
CLASSES = [each for name in cloud_sdk.__all__ if inspect.isclass(each := getattr(cloud_sdk, name))]
# Of the SDK's classes among each other.
INNER = {
    "header",
    "channel_credentials",
    "options",
    "frame",
    "flags",
    "settle",
    "extend_leases",
    "batch_with_expiry",
    "give_back_unseen",
}
INNER |= {"give_back_unseen", "hand_over", "stop_waiting", "is_called_from_handler"}
OF_OBJECT = frozenset(dir(object)) | frozenset(dir(tuple)) | frozenset(dir(dict)) | frozenset(dir(Exception))


def members(kind: type) -> set[str]:
    """Public names of a class: methods, properties and fields."""
    names = {name for each in kind.__mro__ for name in (*vars(each), *getattr(each, "__annotations__", ()))}
    for each in kind.__mro__:
        slots = getattr(each, "__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    return {name for name in names if not name.startswith("_")} - OF_OBJECT - INNER


def parameters(function: object) -> list[str]:
    told = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [each.name for each in told if each.name != "self" and each.kind is not each.VAR_KEYWORD]


@pytest.mark.parametrize("name", cloud_sdk.__all__)
def test_every_name_is_in_the_reference(name: str) -> None:
    assert name in NAMED


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_member_is_in_the_reference(kind: type) -> None:
    assert not sorted(members(kind) - NAMED)


@pytest.mark.parametrize("name", sorted(members(cloud_sdk.Client) | {"__init__"}))
def test_every_option_of_a_call_is_in_the_reference(name: str) -> None:
    found = getattr(cloud_sdk.Client, name)
    told = [] if isinstance(found, property) or not callable(found) else parameters(found)
    assert not [each for each in told if each not in NAMED]


def test_the_reference_calls_nothing_that_there_is_not() -> None:
    known = {*cloud_sdk.__all__, *(name for kind in CLASSES for name in members(kind))}
    of_others = {"f", "checker", "print", "start_as_current_span", "get"}  # `members` leaves out what a dict has
    assert not sorted(CALLED - known - of_others)


@pytest.mark.parametrize("package", [cloud_sdk, record], ids=lambda package: package.__name__)
def test_the_package_declares_that_it_is_typed(package: ModuleType) -> None:
    assert package.__file__ is not None and Path(package.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize("name", blocking.__all__)
def test_the_blocking_client_has_the_same_calls(name: str) -> None:
    here, there = getattr(cloud_sdk, name), getattr(blocking, name)
    assert members(there) >= members(here)
    for member in sorted(members(here)):
        if inspect.isfunction(found := getattr(here, member, None)):
            signature = inspect.signature(getattr(there, member)).parameters
            if "options" not in signature:  # else mypy holds them to the same TypedDict
                assert list(signature) == list(inspect.signature(found).parameters), member
