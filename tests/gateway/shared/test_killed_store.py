"""A store that is killed, or fails, while it hands messages of QoS 2 over to members: its log says which it has handed
over."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from store.api import Handed
from store.errors import StoreFailed
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, RawClient
from tests.gateway.several import Several
from tests.gateway.sharing import GROUP
from tests.waiting import patience


@pytest.mark.mqtt5("4.8.2-4")
@pytest.mark.parametrize("expiry", [0, 3600])
@pytest.mark.parametrize("committed", [0, 1, 3])
async def test_what_a_killed_store_has_handed_over_is_sent(tmp_path: Path, committed: int, expiry: int) -> None:
    """The first messages, or all, or none. The others are handed over later."""
    several = await Several(tmp_path / "data", far=True, store__lease_ms=3_600_000).open()
    await several.join("a")
    member = await RawClient.connect(several.ports["a"], b"member", 5, False, expiry=expiry)
    await member.subscribe((GROUP, 2))
    hand_over, is_killed = several.engine.hand_over, asyncio.Event()

    async def hang(group: bytes, handed: Sequence[Handed]) -> list[int]:
        assert len(handed) == 3
        await hand_over(group, handed[:committed])
        is_killed.set()
        return await asyncio.get_running_loop().create_future()

    several.engine.hand_over = hang  # type: ignore[method-assign]
    publisher = await RawClient.connect(several.ports["a"], b"publisher", 4)
    publisher.send(*[wire.publish(4, b"t/x", b"%d" % number, 2, number) for number in (1, 2, 3)])
    async with patience():
        await is_killed.wait()
    await several.restart()
    got = await member.take(3)
    assert sorted(message.payload for message in got) == [b"1", b"2", b"3"]
    assert len({message.packet_id for message in got}) == 3
    assert not any(message.dup for message in got)
    await member.settle()
    await member.quiet()
    await several.close()


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("committed", [0, 1, 3])
async def test_what_a_failed_store_may_have_handed_over_is_said_by_its_log(
    tmp_path: Path, committed: int, far: bool
) -> None:
    """The connection is closed. When the member is back, it gets what its session has, and the others after that."""
    several = await Several(tmp_path / "data", far=far, store__lease_ms=3_600_000).open()
    await several.join("a")
    member = await RawClient.connect(several.ports["a"], b"member", 5, False, expiry=3600)
    await member.subscribe((GROUP, 2))
    hand_over = several.engine.hand_over

    async def fail(group: bytes, handed: Sequence[Handed]) -> list[int]:
        several.engine.hand_over = hand_over  # type: ignore[method-assign]
        assert len(handed) == 3
        await hand_over(group, handed[:committed])
        raise StoreFailed("the disk fails")

    several.engine.hand_over = fail  # type: ignore[method-assign]
    publisher = await RawClient.connect(several.ports["a"], b"publisher", 4)
    publisher.send(*[wire.publish(4, b"t/x", b"%d" % number, 2, number) for number in (1, 2, 3)])
    assert (await member.expect(DISCONNECT)).reason == 0x83
    await member.closed()
    if far:
        await several.restart()
    member = await RawClient.connect(several.ports["a"], b"member", 5, False, expiry=3600)
    got = await member.take(3)
    assert sorted(message.payload for message in got) == [b"1", b"2", b"3"]
    await member.settle()
    await member.quiet()
    await several.close()
