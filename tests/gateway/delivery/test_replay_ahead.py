"""A replay of a filter with a literal first level passes over what is of other parent topics, and over nothing else."""

import random

import pytest

import record
from gateway.delivery.next_position import find_next_position
from gateway.node.node import Node
from gateway.session.replay_cursor import ReplayCursor
from record.layout import FLAG_DELAYED, FLAG_REVIVED, Kind
from store import control
from store.api import Chunk
from tests.gateway.conftest import MakeNode
from tests.gateway.delivery.test_released_messages import FAR, append
from tests.gateway.delivery.test_replay import EVER, engine_of, payloads, replay
from tests.gateway.raw import RawClient


def message(topic: bytes, payload: bytes, flags: int = 0, trailer: int | None = None) -> bytes:
    return record.frame(Kind.MESSAGE, 1 | flags, 0, topic, b"p", b"", payload, trailer)


def watch_reads(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read of the log from now on."""
    engine = engine_of(node)
    read = engine.read
    sizes: list[int] = []

    async def watched(position: int, max_bytes: int) -> Chunk:
        chunk = await read(position, max_bytes)
        sizes.append(len(chunk.data))
        return chunk

    monkeypatch.setattr(engine, "read", watched)
    return sizes


@pytest.mark.parametrize("expiry", [0, EVER])
async def test_a_quiet_parent_in_a_busy_log_is_found_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch, expiry: int
) -> None:
    for part in range(3):
        await append(node, message(b"quiet/%d" % part, b"%d" % part))
        for _ in range(10):
            await append(node, *[message(b"busy/%d" % number, bytes(1000)) for number in range(300)])
    await append(node, message(b"quiet/3", b"3"))
    for _ in range(10):
        await append(node, *[message(b"busy/%d" % number, bytes(1000)) for number in range(300)])
    sizes = watch_reads(node, monkeypatch)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=expiry)
    await replay(client, b"quiet/+", b"earliest")
    assert payloads(await client.take(4)) == [b"0", b"1", b"2", b"3"]
    await append(node, message(b"quiet/4", b"4"))
    assert payloads(await client.take(1)) == [b"4"]
    await client.quiet()
    assert sum(sizes) < 3_000_000  # of 12 MB


@pytest.mark.parametrize("seed", range(8))
async def test_a_replay_passes_over_no_message(make_node: MakeNode, seed: int) -> None:
    """Between messages of others, some held, let in by one record or copied; and beside what comes meanwhile."""
    chance = random.Random(seed)
    counts = chance.choice([{}, {"mine": 6}])
    node = await make_node(store__partitions=chance.choice([1, 4]), store__parent_partitions=counts)
    expected: list[bytes] = []
    held: list[tuple[int, bytes, bytes]] = []  # handle, topic, payload
    number = 0

    def name() -> tuple[bytes, bytes]:
        nonlocal number
        number += 1
        parent = b"mine" if chance.random() < 0.1 else b"other"
        return b"%s/%d" % (parent, chance.randrange(3)), b"%d" % number

    for _ in range(60):
        frames: list[bytes] = []
        for _ in range(chance.randrange(1, 30)):
            topic, payload = name()
            frames.append(message(topic, payload + bytes(chance.choice([0, 2000]))))
            if topic.startswith(b"mine"):
                expected.append(payload)
        await append(node, *frames)
        if chance.random() < 0.3:
            late = [name() for _ in range(3)]
            handles = await append(node, *[message(topic, payload, FLAG_DELAYED, FAR) for topic, payload in late])
            held += [(handle, *each) for handle, each in zip(handles, late, strict=True)]
        if held and chance.random() < 0.3:
            some = [held.pop(chance.randrange(len(held))) for _ in range(min(len(held), chance.randrange(1, 4)))]
            if len(some) == 1:
                handle, topic, payload = some[0]
                await append(node, message(topic, payload, FLAG_REVIVED, handle))
            else:
                await append(node, control.TimersFired([handle for handle, _, _ in some]).frame())
            expected += [payload for _, topic, payload in some if topic.startswith(b"mine")]
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, False, expiry=chance.choice([0, EVER]))
    await replay(client, b"mine/+", b"earliest")
    await append(node, message(b"other/1", b"x"), message(b"mine/1", b"end"))
    found = [payload.rstrip(b"\0") for payload in payloads(await client.take(len(expected) + 1))]
    assert found == [*expected, b"end"]
    await client.quiet()


async def test_reading_ahead_is_rare_if_it_gains_little() -> None:
    history = ReplayCursor(b"mine/+", 0, 1 << 40, True)
    looks = 0
    for _ in range(1000):
        if history.may_skip:
            looks += 1
            history.skipped(0)
        history.note_read(True)
    assert looks < 25
    assert ReplayCursor(b"+/a", 0, 100, True).parent is None
    assert ReplayCursor(b"#", 0, 100, True).parent is None


async def test_from_a_place_that_has_one_nothing_is_passed_over(node: Node) -> None:
    (first,) = await append(node, message(b"mine/1", b"a"))
    await append(node, message(b"other/1", b"b"))
    engine = engine_of(node)
    end = engine.stats().log_end
    assert await find_next_position(engine, b"mine", first, end) == first
    assert await find_next_position(engine, b"mine", first, first) == first
    assert await find_next_position(engine, b"none", first, end) == end
