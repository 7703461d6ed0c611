"""Topic events of commits, from a real store to the nodes that registered."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import record
from notify import Notifier, TopicEvents
from record.layout import Kind
from store.api import Appended
from store.config import StoreConfig
from store.control import session_opened
from store.engine import Engine


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    opened = await Engine.open(tmp_path, StoreConfig(segment_size=1 << 16))
    yield opened
    await opened.close()


async def append(engine: Engine, *frames: bytes) -> None:
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    engine.append(list(frames), future.set_result)
    assert (await future).error is None


def message(topic: bytes) -> bytes:
    return record.frame(int(Kind.MESSAGE), 0, 0, topic, b"publisher", b"", b"payload")


async def test_events_are_merged_by_topic_and_carry_the_commit(engine: Engine) -> None:
    heard: list[TopicEvents] = []
    Notifier(engine).register("node", heard.append)
    await append(engine, message(b"a"), message(b"b"), message(b"a"))
    await append(engine, message(b"a"))
    assert [events.ends for events in heard] == [{b"a": 2, b"b": 1}, {b"a": 3}]
    assert [events.commit.topics for events in heard] == [[b"a", b"b", b"a"], [b"a"]]


async def test_nodes_hear_before_the_append_is_answered(engine: Engine) -> None:
    order: list[str] = []
    Notifier(engine).register("node", lambda _events: order.append("heard"))
    answered = asyncio.Event()

    def done(_appended: Appended) -> None:
        order.append("answered")
        answered.set()

    engine.append([message(b"a")], done)
    async with asyncio.timeout(20):
        await answered.wait()
    assert order == ["heard", "answered"]


async def test_a_commit_without_messages_is_no_event(engine: Engine) -> None:
    heard: list[TopicEvents] = []
    notifier = Notifier(engine)
    notifier.register("node", heard.append)
    await append(engine, session_opened(b"c", 1, 60, True))
    assert heard == []
    await append(engine, message(b"a"))
    assert (len(heard), notifier.commits, notifier.events) == (1, 1, 1)


async def test_a_node_that_fails_stops_neither_the_others_nor_the_answer(engine: Engine) -> None:
    def fail(_events: TopicEvents) -> None:
        raise RuntimeError("a node's fault")

    heard: list[TopicEvents] = []
    notifier = Notifier(engine)
    notifier.register("failing", fail)
    notifier.register("sound", heard.append)
    await append(engine, message(b"a"))
    assert [events.ends for events in heard] == [{b"a": 1}]


async def test_a_node_registers_once(engine: Engine) -> None:
    notifier = Notifier(engine)
    notifier.register("node", lambda _events: None)
    with pytest.raises(ValueError, match="registered already"):
        notifier.register("node", lambda _events: None)
