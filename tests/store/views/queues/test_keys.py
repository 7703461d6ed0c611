"""The key index: messages are found by business key and by id, after restarts and retention too."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from record.layout import FLAG_DELAYED, FLAG_HALF, HEADER_SIZE, MAX_KEY, MAX_KEYS, Kind
from store import control, find
from store.config import StoreConfig
from store.engine import Engine
from store.errors import NoSuchMessage
from store.log.reader import LogReader
from store.log.writer import clock_ms
from store.views.queues import keys as keys_view
from tests.store.images import copy_image
from tests.store.retention.test_retention import ColdDisk
from tests.store.test_engine import append

pytestmark = [pytest.mark.any_store, pytest.mark.usefixtures("retention_on_request")]

SEGMENT = 4096
CONFIG = StoreConfig(
    segment_size=SEGMENT,
    generation_segments=2,
    checkpoint_keys=12,
    retention_bytes=6 * SEGMENT,
    retention_check_s=3600,
    tail_cache_bytes=SEGMENT,
)


def keyed(topic: bytes, *keys: bytes, payload: bytes = b"x", flags: int = 0, trailer: int | None = None) -> bytes:
    block = b"".join(b"\x26\0\3key" + len(key).to_bytes(2, "big") + key for key in keys)
    return record.frame(Kind.MESSAGE, flags, 0, topic, b"", block, payload, trailer)


async def payloads(engine: Engine, parent: bytes, key: bytes, limit: int = 100, size: int = 1 << 20) -> list[bytes]:
    """All messages with a key, in pages."""
    found: list[bytes] = []
    after: int | None = None
    while True:
        page = await engine.by_key(parent, key, after, limit, size)
        starts = record.split(page.data)
        assert len(starts) == page.count <= limit
        found += [record.decode(page.data, start)[6] for start in starts]
        after = page.after
        if after is None:
            return found


async def test_messages_are_found_by_key_in_order_of_the_log(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    await append(engine, keyed(b"shop/1", b"a", payload=b"1"), keyed(b"shop/2", b"a", b"b", payload=b"2"))
    await append(
        engine, control.SessionOpened(1, 10, True).frame(b"a"), keyed(b"bank/1", b"a", payload=b"other parent")
    )
    await append(engine, *[keyed(b"shop/%d" % i, b"a", payload=b"%d" % i) for i in range(3, 60)])
    for _ in range(2):
        for limit, size in ((100, 1 << 20), (7, 1 << 20), (100, 1), (1, 100)):
            assert await payloads(engine, b"shop", b"a", limit, size) == [b"%d" % i for i in range(1, 60)]
        assert await payloads(engine, b"shop", b"b") == [b"2"]
        assert await payloads(engine, b"bank", b"a") == [b"other parent"]
        assert await payloads(engine, b"shop", b"nobody's") == []
        assert await payloads(engine, b"", b"a") == []
        page = await engine.by_key(b"shop", b"a", None, 2, 1 << 20)
        assert page.after == record.position_of(page.data, record.split(page.data)[1])
        await engine.close()
        engine = await Engine.open(tmp_path, CONFIG)
    await engine.close()


async def test_keys_of_a_message_are_bounded(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    names = [b"%d" % i for i in range(MAX_KEYS + 4)]
    longest = b"x" * MAX_KEY
    await append(engine, keyed(b"t", b"0", b"", longest + b"x", *names), keyed(b"t", longest))
    views = engine._views
    views.checkpoint(0)
    rows = list(engine._database.scan(b"k", b"k"))
    assert len(rows) == MAX_KEYS + 1
    assert await payloads(engine, b"t", longest) == [b"x"]
    assert [len(await payloads(engine, b"t", name)) for name in (b"", longest + b"x", *names[-5:])] == [
        0,
        0,
        1,
        0,
        0,
        0,
        0,
    ]
    await engine.close()


async def test_a_message_that_does_not_enter_its_queues_is_not_found(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    await append(
        engine,
        keyed(b"t", b"k", flags=FLAG_DELAYED, trailer=1 << 50),
        keyed(b"t", b"k", flags=FLAG_HALF),
        keyed(b"t", b"k", payload=b"y"),
    )
    assert await payloads(engine, b"t", b"k") == [b"y"]
    await engine.close()


async def test_keys_with_the_same_digest_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in (keys_view, find):
        monkeypatch.setattr(module, "key_digest", lambda parent, key: bytes(8))
    engine = await Engine.open(tmp_path, CONFIG)
    frames = [keyed(b"%d/t" % (i % 2), b"%d" % (i % 3), payload=b"%d" % i) for i in range(12)]
    await append(engine, *frames)
    for limit in (1, 2, 100):
        assert await payloads(engine, b"0", b"2", limit) == [b"2", b"8"]
        assert await payloads(engine, b"0", b"3", limit) == []
    await engine.close()


async def test_a_message_is_found_by_its_id(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    frames = [keyed(b"t", b"k", payload=b"%d" % i + bytes(i * 50)) for i in range(20)]
    frames.insert(3, control.SessionOpened(1, 10, True).frame(b"a"))
    positions = [position for frame in frames for position in (await append(engine, frame)).positions]
    end = engine.stats().log_end
    for _ in range(2):
        for frame, position in zip(frames, positions, strict=True):
            if position == positions[3]:
                continue
            found = await engine.message(position)
            assert record.position_of(found, 0) == position
            assert record.decode(found, 0) == record.decode(frame, 0)
        for nothing in (positions[3], positions[5] + 1, positions[5] - 1, end, end + 1, 1 << 50):
            with pytest.raises(NoSuchMessage, match="no message begins at"):
                await engine.message(nothing)
        await engine.close()
        engine = await Engine.open(tmp_path, CONFIG)
    await engine.close()


async def test_an_id_in_the_zeros_behind_a_segments_last_record_is_no_message(tmp_path: Path):
    engine = await Engine.open(tmp_path, CONFIG)
    await append(engine, keyed(b"t", b"k", payload=bytes(2000)))
    done = await append(engine, keyed(b"t", b"k", payload=bytes(2500)))
    assert done.positions == [SEGMENT]
    for position in (SEGMENT - 1, SEGMENT - 100):
        with pytest.raises(NoSuchMessage):
            await engine.message(position)
    await engine.close()


async def test_keys_go_with_their_generation(tmp_path: Path):
    engine = await Engine.open(tmp_path, replace(CONFIG, tail_cache_bytes=1 << 20))  # it has what is reclaimed
    first = (await append(engine, keyed(b"t", b"k", payload=b"first"))).positions[0]
    for i in range(60):
        await append(engine, keyed(b"t", b"k", payload=b"%d" % i + bytes(1000)))
    await engine._retention.enforce()
    begin = engine.stats().log_begin
    assert begin > 2 * SEGMENT
    found = await payloads(engine, b"t", b"k")
    assert found
    assert found == [b"%d" % i + bytes(1000) for i in range(60 - len(found), 60)]
    page = await engine.by_key(b"t", b"k", None, 1, 1)
    assert begin <= record.position_of(page.data, 0) < begin + 1500
    with pytest.raises(NoSuchMessage, match=f"is gone: the log begins at {begin}"):
        await engine.message(first)
    generations = {key[1:5] for key, _ in engine._database.scan(b"k", b"k")}
    assert min(generations) == (begin // (2 * SEGMENT)).to_bytes(4, "big")
    await engine.close()


@pytest.mark.parametrize("way", ["key", "id"])
async def test_a_search_that_loses_its_segment_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str):
    engine = await Engine.open(tmp_path, CONFIG, disk=ColdDisk())
    first = (await append(engine, keyed(b"t", b"k", payload=b"first"))).positions[0]
    for i in range(20):
        await append(engine, keyed(b"t", b"k", payload=b"%d" % i + bytes(2000)))
    loop = asyncio.get_running_loop()
    with_file = LogReader._with_file
    late = True

    def read(reader: LogReader, base: int, function: Callable[..., object], *arguments: object) -> object:
        nonlocal late
        if late:  # in a thread of the reader, when retention is quicker
            late = False
            asyncio.run_coroutine_threadsafe(engine._retention.enforce(), loop).result(30)
        return with_file(reader, base, function, *arguments)

    monkeypatch.setattr(LogReader, "_with_file", read)
    if way == "key":
        found = await payloads(engine, b"t", b"k")
        assert 0 < len(found) < 20
        assert found[-1] == b"19" + bytes(2000)
    else:
        with pytest.raises(NoSuchMessage, match="is gone"):
            await engine.message(first)
    assert not late
    await engine.close()


histories = st.lists(
    st.one_of(
        st.lists(
            st.tuples(
                st.sampled_from([b"a/b", b"a", b"b/c", b"/x"]),
                st.lists(st.sampled_from([b"k", b"l", b"long" * 9]), max_size=3),
                st.sampled_from([1, 40, 900]),
            ),
            min_size=1,
            max_size=12,
        ),
        st.sampled_from(["retain", "reopen", "crash", "checkpoint"]),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories)
def test_any_history_is_found_by_key_as_it_is_by_looking_at_every_message(tmp_path_factory, history):
    asyncio.run(live(tmp_path_factory.mktemp("keys"), history))


async def live(path: Path, history: list[object]) -> None:
    engine = await Engine.open(path / "0", CONFIG)
    for number, step in enumerate([*history, "crash"]):
        if isinstance(step, list):
            await append(engine, *[keyed(topic, *keys, payload=bytes(size)) for topic, keys, size in step])
        elif step == "retain":
            await engine._retention.enforce()
        elif step == "checkpoint":
            engine._views.checkpoint(0)
        else:
            await engine._retention.enforce()
            folder = path / str(number + 1)
            if step == "crash":
                copy_image(engine._folder.path, folder)
            await engine.close()
            if step == "reopen":
                engine._folder.path.rename(folder)
            engine = await Engine.open(folder, CONFIG)
        await check(engine)
    await engine.close()


async def check(engine: Engine) -> None:
    stats = engine.stats()
    frames: list[bytes] = []
    position = stats.log_begin
    while position < stats.log_end:
        chunk = await engine.read(position, 1 << 20)
        frames += [chunk.data[a:b] for a, b in pairwise([*record.split(chunk.data), len(chunk.data)])]
        position = chunk.next_position
    for parent in (b"a", b"b", b""):
        for key in (b"k", b"l", b"long" * 9):
            expected = b""
            for frame in frames:
                _, _, _, topic, _, block, _ = record.decode(frame, 0)
                if topic.split(b"/")[0] == parent and key in record.keys_of(block):
                    expected += frame
            found, after, more = b"", None, True
            while more:
                page = await engine.by_key(parent, key, after, 3, 1 << 20)
                found, after = found + page.data, page.after
                more = after is not None
            assert found == expected


@pytest.mark.engine_only
async def test_a_payload_is_never_taken_for_a_message(tmp_path: Path):
    """A record that somebody put together in the payload of another, for exactly this place of the log."""
    engine = await Engine.open(tmp_path, CONFIG)
    for flags, due in ((0, None), (FLAG_DELAYED, 1 << 40)):
        position = engine.stats().log_end
        forged = record.frame(Kind.MESSAGE, flags, 0, b"bank/order", b"director", b"", b"pay", due)
        at = position + HEADER_SIZE + len(b"t")
        sealed = record.seal([forged], at, 1, clock_ms(), at)
        done = await append(engine, record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", sealed))
        assert list(done.positions) == [position]
        assert record.decode(await engine.message(position), 0)[3] == b"t"
        with pytest.raises(NoSuchMessage):
            await engine.message(at)
    await engine.close()
