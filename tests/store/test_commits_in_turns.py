"""Listeners that need several turns of the loop for a commit: nothing overtakes it, and the loop goes on meanwhile."""

import asyncio
from pathlib import Path

import pytest

from store.api import Appended, Commit, Rest
from store.engine import Engine
from tests.store.test_engine import SMALL, message
from tests.waiting import until

pytestmark = pytest.mark.any_store


class Slow:
    """A listener that needs turns of the loop for a commit until it `may_end`. It counts turns."""

    def __init__(self, fails: bool = False) -> None:
        self.heard: list[object] = []
        self.turns: list[int] = []  # in which it was called again
        self.may_end = False
        self._turn = 0
        self._fails = fails
        self._count()

    def listen(self, commit: Commit) -> Rest | None:
        if not commit.topics:
            return None
        self.heard += commit.topics
        return self._go_on

    def _go_on(self) -> bool:
        self.turns.append(self._turn)
        if self._fails:
            raise ValueError("a fault of a listener")
        if self.may_end:
            self.heard.append("end")
        return not self.may_end

    def _count(self) -> None:
        self._turn += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    async def works(self) -> None:
        """Wait until it was called again some times."""
        before = len(self.turns)
        await until(lambda: len(self.turns) > before + 5)

    def stop(self) -> None:
        self._next.cancel()


def append(engine: Engine, topic: bytes, heard: list[object]) -> None:
    def done(appended: Appended) -> None:
        heard.append(topic + b" answered" if appended.error is None else appended.error)

    engine.append([message(topic)], done)


async def test_answers_and_later_commits_wait_for_listeners(tmp_path: Path) -> None:
    engine = await Engine.open(tmp_path, SMALL)
    slow = Slow()
    engine.on_commit(slow.listen)
    append(engine, b"a", slow.heard)
    await slow.works()
    append(engine, b"b", slow.heard)
    await slow.works()
    append(engine, b"c", slow.heard)
    await slow.works()
    assert slow.heard == [b"a"]
    slow.may_end = True
    await until(lambda: b"c answered" in slow.heard)
    slow.stop()
    await engine.close()
    assert slow.heard == [b"a", "end", b"a answered", b"b", "end", b"b answered", b"c", "end", b"c answered"]
    assert slow.turns == sorted(set(slow.turns))


async def test_a_store_that_closes_waits_for_listeners(tmp_path: Path) -> None:
    engine = await Engine.open(tmp_path, SMALL)
    slow = Slow()
    engine.on_commit(slow.listen)
    append(engine, b"a", slow.heard)
    await slow.works()
    append(engine, b"b", slow.heard)
    closing = asyncio.create_task(engine.close())
    await slow.works()
    assert not closing.done()
    slow.may_end = True
    await closing
    slow.stop()
    assert slow.heard == [b"a", "end", b"a answered", b"b", "end", b"b answered"]


async def test_a_listener_that_fails_later_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = await Engine.open(tmp_path, SMALL)
    faulty, slow = Slow(fails=True), Slow()
    engine.on_commit(faulty.listen)
    engine.on_commit(slow.listen)
    append(engine, b"a", slow.heard)
    await slow.works()
    slow.may_end = True
    await until(lambda: b"a answered" in slow.heard)
    faulty.stop()
    slow.stop()
    await engine.close()
    assert len(faulty.turns) == 1
    assert slow.heard == [b"a", "end", b"a answered"]
    assert "a commit listener failed" in caplog.text


@pytest.mark.engine_only
async def test_appends_that_come_meanwhile_share_a_flush(tmp_path: Path) -> None:
    """One flush may end while listeners work. It waits for them, and so do all appends behind it."""
    engine = await Engine.open(tmp_path, SMALL)
    slow = Slow()
    engine.on_commit(slow.listen)
    batches = [engine.stats().batches]
    append(engine, b"a", slow.heard)
    await slow.works()
    for _ in range(10):
        append(engine, b"b", slow.heard)
        await slow.works()
    slow.may_end = True
    await until(lambda: slow.heard.count(b"b answered") == 10)
    slow.stop()
    batches.append(engine.stats().batches)
    await engine.close()
    assert batches[1] - batches[0] == 3
