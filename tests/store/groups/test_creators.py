"""The creator of a group is the user whose call began it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from store import control
from store.api import PopRequest, Start
from tests.store.popping import OTHER, Bench, Q

pytestmark = pytest.mark.any_store


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data").open()
    yield bench
    await bench.engine.close()


async def test_the_first_user_of_a_group_stays_its_creator(bench: Bench) -> None:
    engine = bench.engine
    assert await engine.group_creator(b"g") == b""
    await engine.pop(PopRequest(b"g", [Q], 1, 1, 1000, Start.EARLIEST, user=b"alice"))
    await engine.pop(PopRequest(b"g", [OTHER], 1, 1, 1000, Start.EARLIEST, user=b"bob"))
    await engine.reset_group(b"g", {Q: 0}, b"bob")
    assert await engine.group_creator(b"g") == b"alice"
    await bench.reopen()
    assert await bench.engine.group_creator(b"g") == b"alice"
    await bench.engine.remove_group(b"g")
    assert await bench.engine.group_creator(b"g") == b""
    await bench.engine.reset_group(b"g", {Q: 0}, b"bob")
    assert await bench.engine.group_creator(b"g") == b"bob"


async def test_a_group_that_began_without_a_user_gets_no_creator(bench: Bench) -> None:
    await bench.append(control.GroupOffsetsCommitted(b"a", {0: 0}).frame(b"pulls"))
    await bench.append(control.GroupOffsetsCommitted(b"b", {0: 0}, b"alice").frame(b"pulls"))
    assert await bench.engine.group_creator(b"pulls") == b""
    await bench.append(control.GroupOffsetsCommitted(b"a", {0: 0}, b"alice").frame(b"mine"))
    await bench.engine.reset_group(b"mine", {Q: 0}, b"bob")
    assert await bench.engine.group_creator(b"mine") == b"alice"
