"""Every question of `Store` travels, as it is asked there."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from matcher.selector import SelectorError
from store import errors
from store.api import Store
from store.errors import (
    ClaimedByAnotherUser,
    GatewayEnded,
    LogCorrupt,
    NoSuchMessage,
    OffsetOutOfRange,
    StoreBusy,
    StoreError,
    TooManyGroups,
    ViewsDamaged,
)
from store.remote.wire.calls import METHODS, Method, RemoteCalls
from store.remote.wire.faults import error_of, fault_of


def test_every_call_arrives_with_its_arguments():
    asked = dict(inspect.getmembers(Store, inspect.iscoroutinefunction))
    assert {method.name for method in METHODS} == set(asked)
    for name, question in asked.items():
        assert inspect.signature(getattr(RemoteCalls, name)) == inspect.signature(question), name


class _Unreachable(RemoteCalls):
    async def _ask(self, method: Method, arguments: tuple[object, ...]) -> object:
        raise AssertionError((method.name, arguments))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((b"tx", 0, 1), {}), ((b"tx",), {"offset": 0, "max_records": 1}), ((b"tx", 0, 1, 2), {"to": 1})],
)
async def test_a_call_with_wrong_arguments_is_a_type_error(arguments: tuple[Any, ...], named: dict[str, Any]):
    with pytest.raises(TypeError, match=r"^fetch takes \(self, queue: bytes, offset: int, max_records: int"):
        await _Unreachable().fetch(*arguments, **named)


@pytest.mark.parametrize(
    "error",
    [
        OffsetOutOfRange(b"tx", 7, 1, 3),
        LogCorrupt("0000", 12, "a hole"),
        NoSuchMessage("no such message"),
        StoreBusy("busy"),
        TooManyGroups("many"),
        StoreError("else"),
        GatewayEnded(b"g/1"),
        ClaimedByAnotherUser(b"c"),
        ValueError("wrong"),
        SelectorError("wrong", 3, "a = = b"),
    ],
)
def test_errors_are_what_they_were(error: Exception):
    again = error_of(fault_of(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_error_of_the_store_travels(tmp_path: Path):
    kinds = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, StoreError)}
    given = {GatewayEnded: (b"g/1",), ClaimedByAnotherUser: (b"c",), ViewsDamaged: (tmp_path, OSError("torn"))}
    given |= {OffsetOutOfRange: (b"tx", 7, 1, 3), LogCorrupt: ("0000", 12, "a hole")}
    for kind in kinds:
        error = kind(*given.get(kind, ("words",)))
        again = error_of(fault_of(error))
        assert (type(again), str(again)) == (kind, str(error))


def test_other_errors_are_the_stores(tmp_path: Path):
    assert type(error_of(fault_of(KeyError("x")))) is StoreError
    with pytest.raises(ValueError, match="codec"):
        raise error_of(fault_of(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")))
