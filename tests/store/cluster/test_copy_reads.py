"""Reads of a follower's copy: they give what the leader gives, and nothing that depends on where the log ends."""

from collections.abc import AsyncIterator
from random import Random
from tempfile import TemporaryDirectory

import pytest

import record
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from record.layout import Kind
from store.api import partition_queue, topic_queue
from store.engine import Engine
from store.errors import OffsetOutOfRange
from store.local_store import LocalStore
from store.remote import RemoteConfig, RemoteStore, StoreServer
from store.remote.server.copy_reads import CopyReads, NotReadable
from store.remote.server.listener import StoreListener
from store.remote.wire.calls import FETCH, READ, Method, encode
from store.remote.wire.copies import NO_ANSWER
from tests.store.cluster.nodes import Node, Nodes, Writer, append
from tests.waiting import patience, until

PARENT = b"home"
_SOCKETS = TemporaryDirectory(prefix="sluice-")  # short: paths of sockets have 107 bytes at the most


async def follower_of(nodes: Nodes) -> tuple[Node, Node]:
    """The leader and a follower that has all."""
    leader = await nodes.start_leader("a")
    follower = await nodes.start("b")
    await nodes.settle()
    return leader, follower


def copy_of(node: Node) -> LocalStore:
    assert node.store.local is not None
    return node.store.local


def request(method: Method, *arguments: object) -> bytes:
    return bytes([method.number]) + encode(arguments)


async def publish(engine: Engine, count: int) -> int:
    """Publish `count` messages of one topic. Returns the end of the log."""
    frames = [record.frame(Kind.MESSAGE, 0, 0, b"home/x", b"", b"", b"%d" % each) for each in range(count)]
    appended = await append(engine, frames)
    assert appended.error is None
    return engine.position


async def test_answers_are_those_of_the_leader_and_none_is_about_the_end(nodes: Nodes) -> None:
    leader, follower = await follower_of(nodes)
    writer, rng, answers = Writer(nodes), Random(1), 0
    for _ in range(4):
        await writer.append(40, leader)
        await nodes.settle()
        follower.port.cut()
        await writer.append(10, leader)
        copy, engine = copy_of(follower), leader.engine
        reads = CopyReads(copy, RemoteConfig())
        known = copy.meta.openings[-1].name, engine.position
        assert copy.position < engine.position
        topics = (await engine.topics(b"", None, 1000)).names
        parents = {topic.partition(b"/")[0] for topic in topics}
        queues = [topic_queue(topic) for topic in topics]
        queues += [partition_queue(each, number) for each in parents for number in range(engine.partition_count(each))]
        for queue in queues:
            bounds, theirs = await copy.bounds(queue), await engine.bounds(queue)
            for offset in range(bounds.begin, theirs.end + 2):
                limits = rng.choice((1, 3, 1000)), rng.choice((1, 300, 1 << 20))
                answer = await reads.read(request(FETCH, queue, offset, *limits, 0), *known)
                if answer == NO_ANSWER:
                    continue
                found = FETCH.result.decode(answer)
                assert offset == found.offset < found.next_offset < bounds.end
                answers += 1
                if offset >= (await engine.bounds(queue)).begin:
                    same = await engine.fetch(queue, offset, found.count, 1 << 30)
                    assert (same.offset, same.count, same.data) == (found.offset, found.count, found.data)
            if bounds.end - bounds.begin > 1:  # what is not at the end is answered
                first = await copy.fetch(queue, bounds.begin, 1, 1)
                answer = await reads.read(request(FETCH, queue, first.offset, 1, 1, 0), *known)
                assert (answer == NO_ANSWER) is (first.next_offset == bounds.end)
        position = copy.stats().log_begin
        while (answer := await reads.read(request(READ, position, 5000), *known)) != NO_ANSWER:
            chunk, same = READ.result.decode(answer), await engine.read(position, 5000)
            assert chunk.next_position < copy.position
            assert chunk == same
            position = chunk.next_position
        assert position < copy.position
        follower.port.mend()
        await nodes.settle()
    assert answers > 500


async def test_a_copy_of_another_log_or_far_behind_is_not_read(nodes: Nodes) -> None:
    leader, follower = await follower_of(nodes)
    await publish(leader.engine, 10)
    end = await nodes.settle()
    copy = copy_of(follower)
    reads = CopyReads(copy, RemoteConfig(max_copy_lag=1000))
    opening = copy.meta.openings[-1].name
    body = request(FETCH, topic_queue(b"home/x"), 0, 1, 1, 0)
    assert await reads.read(body, opening, end + 1000) != NO_ANSWER
    for name, position in ((opening, end + 1001), ("of another log", end)):
        with pytest.raises(NotReadable):
            await reads.read(body, name, position)
    for other in (b"", b"\xff", request(FETCH), request(FETCH, b"fhome/#", 0, 1, 1, 0), body[:1] + b"\x91"):
        assert await reads.read(other, opening, end) == NO_ANSWER


class Reader:
    """A gateway of the follower's node, with the stores of both nodes in this process."""

    async def open(self, leader: Node, follower: Node) -> "Reader":
        self.leader, self.copy = (StoreListener(RemoteConfig()) for _ in range(2))
        there, here = (f"unix:{_SOCKETS.name}/{id(each)}" for each in (self.leader, self.copy))
        await self.leader.open(there)
        await self.copy.open(here)
        self.server = StoreServer(leader.engine, Hub(leader.engine), RemoteConfig())
        self.server.begin()
        self.leader.serve(self.server)
        self.copy.serve_copy(follower.store.local)
        self.store = await RemoteStore.open(there, "b.g1", EventReceiver(), routed=False, copy=here)
        return self

    async def close(self) -> None:
        await self.store.close()
        await self.server.stop()
        for listener in (self.leader, self.copy):
            await listener.close()

    @property
    def answers(self) -> int:
        return self.store.figures()["copy_reads"]

    async def scan(self) -> list[bytes]:
        """The payloads of all messages that are there, read one by one."""
        payloads: list[bytes] = []
        while (found := await self.store.bulk.fetch(topic_queue(b"home/x"), len(payloads), 1, 1)).count:
            payloads.append(record.decode(found.data, 0)[6])
        return payloads


@pytest.fixture
async def both(nodes: Nodes) -> tuple[Node, Node]:
    return await follower_of(nodes)


@pytest.fixture
async def reader(both: tuple[Node, Node]) -> AsyncIterator[Reader]:
    reader = await Reader().open(*both)
    yield reader
    await reader.close()


async def test_a_scan_is_of_the_copy_up_to_its_end(reader: Reader, both: tuple[Node, Node], nodes: Nodes) -> None:
    leader, follower = both
    expected = [b"%d" % each for each in range(20)]
    await publish(leader.engine, 20)
    await nodes.settle()
    assert await reader.scan() == expected
    assert reader.answers == 19  # the last one is at the end
    follower.port.cut()
    await publish(leader.engine, 20)
    assert await reader.scan() == [*expected, *expected]
    assert reader.answers == 19 + 19
    with pytest.raises(OffsetOutOfRange):
        await reader.store.bulk.fetch(topic_queue(b"home/x"), 41, 1, 1)
    follower.port.mend()
    await nodes.settle()
    before = 0
    async with patience():
        while reader.answers - before < 39:  # until it looks again where the copy ends
            before = reader.answers
            assert await reader.scan() == [*expected, *expected]


async def test_a_copy_that_does_not_answer_is_left_alone_for_a_while(
    reader: Reader, both: tuple[Node, Node], nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = both[0]
    expected = [b"%d" % each for each in range(20)]
    await publish(leader.engine, 20)
    await nodes.settle()
    asked = 0
    read_copy = CopyReads.read

    async def refuse(*arguments: object) -> bytes:
        nonlocal asked
        asked += 1
        raise NotReadable("not now")

    monkeypatch.setattr(CopyReads, "read", refuse)
    assert await reader.scan() == expected
    assert (asked, reader.answers) == (1, 0)
    monkeypatch.setattr(CopyReads, "read", read_copy)

    async with patience():
        while not reader.answers:
            assert await reader.scan() == expected
    await reader.copy.close()
    assert await reader.scan() == expected
    await publish(leader.engine, 1)
    assert await reader.scan() == [*expected, b"0"]


async def test_scans_go_on_while_nobody_leads(reader: Reader, both: tuple[Node, Node], nodes: Nodes) -> None:
    await publish(both[0].engine, 20)
    await nodes.settle()
    assert len(await reader.scan()) == 20
    reader.leader.serve(None)
    await reader.server.stop()
    await until(lambda: not reader.store.is_connected)
    before = reader.answers
    for offset in range(19):
        assert (await reader.store.bulk.fetch(topic_queue(b"home/x"), offset, 1, 1)).count == 1
    assert reader.answers == before + 19
