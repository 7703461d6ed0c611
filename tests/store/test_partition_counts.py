"""The number of partitions of parent topics: configured, kept by the log, and the same for all who read it."""

import logging
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

import record
from store.api import partition_of, partition_queue
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError
from store.exports.snapshot import Snapshot
from store.exports.until import Until
from tests.store.test_engine import append, message, payloads

pytestmark = pytest.mark.any_store

CONFIG = StoreConfig(segment_size=1 << 16, partitions=2)
TOPICS = [b"a/%d" % number for number in range(20)]


async def opened(folder: Path, **counts: int) -> Engine:
    return await Engine.open(folder, replace(CONFIG, parent_partitions={k.encode(): v for k, v in counts.items()}))


async def fill(engine: Engine, *topics: bytes) -> None:
    assert (await append(engine, *(message(topic, topic) for topic in topics))).error is None


async def partitions(engine: Engine, parent: bytes = b"a") -> list[list[bytes]]:
    count = len(await engine.partition_bounds(parent))
    assert count == engine.partition_count(parent)
    return [await payloads(engine, partition_queue(parent, number)) for number in range(count)]


def parted(*topics: bytes, count: int) -> list[list[bytes]]:
    of = {topic: partition_of(record.tag_of(topic, b""), count) for topic in topics}
    return [[topic for topic in topics if of[topic] == number] for number in range(count)]


async def test_a_parent_topic_has_the_configured_number_and_others_the_default(tmp_path: Path):
    engine = await opened(tmp_path, a=5, b=1)
    await fill(engine, *TOPICS, b"c/x")
    assert await partitions(engine) == parted(*TOPICS, count=5)
    assert [engine.partition_count(parent) for parent in (b"a", b"b", b"c")] == [5, 1, 2]
    await engine.close()
    engine = await opened(tmp_path)  # it is not in the configuration any more
    assert await partitions(engine) == parted(*TOPICS, count=5)
    assert engine.partition_count(b"b") == 1
    await engine.close()


async def test_more_partitions_leave_the_messages_where_they_are(tmp_path: Path):
    engine = await opened(tmp_path, a=2)
    await fill(engine, *TOPICS)
    await engine.close()
    engine = await opened(tmp_path, a=5)
    wanted = [*parted(*TOPICS, count=2), [], [], []]
    assert await partitions(engine) == wanted
    await fill(engine, *TOPICS)
    wanted = [old + new for old, new in zip(wanted, parted(*TOPICS, count=5), strict=True)]
    assert await partitions(engine) == wanted
    await engine.close()
    rmtree(tmp_path / "views")
    engine = await opened(tmp_path, a=5)
    assert await partitions(engine) == wanted
    await engine.close()


async def test_fewer_partitions_are_ignored_once_there_are_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    engine = await opened(tmp_path, a=3)
    await fill(engine, *TOPICS)
    await engine.close()
    with caplog.at_level(logging.WARNING):
        engine = await opened(tmp_path, a=1)
    assert "parent topic 'a' has messages in 3 partitions; the configured 1 is ignored" in caplog.text
    assert (engine.partition_count(b"a"), await partitions(engine)) == (3, parted(*TOPICS, count=3))
    await engine.close()


@pytest.mark.engine_only
async def test_a_number_is_recorded_once(tmp_path: Path):
    engine = await opened(tmp_path, a=3)
    end = engine.stats().log_end
    await engine.close()
    engine = await opened(tmp_path, a=3)
    assert engine.stats().log_end == end > 0
    await engine.close()


@pytest.mark.engine_only
async def test_a_snapshot_has_the_number_of_its_time(tmp_path: Path):
    engine = await opened(tmp_path, a=2)
    await fill(engine, *TOPICS)
    position = engine.stats().log_end
    await engine.close()
    engine = await opened(tmp_path, a=5)
    await engine.close()
    for until, count in ((Until(position=position), 2), (Until(), 5)):
        snapshot = await Snapshot.open(tmp_path, until)
        assert len(await snapshot.partition_bounds(b"a")) == count
        await snapshot.close()


@pytest.mark.engine_only
async def test_too_many_numbers_are_refused_and_leave_nothing(tmp_path: Path):
    with pytest.raises(StoreError, match="at most 1024 parent topics"):
        await opened(tmp_path / "data", **{f"p{number}": 3 for number in range(1025)})
    assert not (tmp_path / "data").exists()
    engine = await opened(tmp_path, **{f"p{number}": 3 for number in range(1024)})
    assert engine.partition_count(b"p1023") == 3
    await engine.close()
    with pytest.raises(StoreError, match="at most 1024 parent topics"):
        await opened(tmp_path, other=3)


@pytest.mark.engine_only
@pytest.mark.parametrize("bad", [{b"a": 0}, {b"a": 65536}, {b"a/b": 3}])
def test_numbers_are_checked(bad: dict[bytes, int]):
    with pytest.raises(ValueError, match="parent_partitions must be"):
        StoreConfig(parent_partitions=bad)
