"""The router: its plans are bounded by what they refer to, not by the number of topics alone; a session's fault is its
own."""

import asyncio
from itertools import pairwise

import pytest

import record
from gateway.delivery.router import Router
from gateway.net.write_buffer import Flusher, WriteBuffer
from gateway.observe.counters import Counters
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from record.layout import Kind
from store.api import Commit, Moved


class Nowhere:
    """A loop and a transport that do nothing."""

    def call_soon(self, *_: object) -> None: ...

    def call_later(self, *_: object) -> None: ...

    def write(self, data: bytes) -> None: ...


class Faulty(Nowhere):
    """It fails."""

    def call_soon(self, *_: object) -> None:
        raise RuntimeError("a fault")


class Socket(Nowhere):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def session(number: int, nowhere: Nowhere | None = None, to: Flusher | None = None) -> Session:
    nowhere = nowhere or Nowhere()
    write_buffer = WriteBuffer(to or Flusher(nowhere), nowhere)  # type: ignore[arg-type]
    return Session(b"s%d" % number, 1, 0, 10, write_buffer, Counters(), lambda *_: None, lambda _: None)


def flusher() -> Flusher:
    return Flusher(Nowhere())  # type: ignore[arg-type]


def test_plans_of_many_subscribers_and_topics_stay_within_the_bound() -> None:
    router = Router(0, flusher())
    for number in range(2000):
        subscriber = session(number)
        subscription = Subscription(subscriber, b"#", 0, False, False, 0, None, 0)
        subscriber.subscribe(subscription)
        router.add(subscription)
    for topic in range(2000):
        assert len(router.routes(b"t/%d" % topic)) == 2000
        assert planned(router) == router._planned <= 1 << 20
    assert len(router._plans) > 1


def planned(router: Router) -> int:
    """The memory of the plans: references, and 8 bytes for each topic."""
    return sum(len(plan.matched) + len(plan.routes) + len(topic) // 8 for topic, plan in router._plans.items())


def test_plans_of_long_topics_stay_within_the_bound() -> None:
    router = Router(0, flusher())
    subscriber = session(1)
    router.add(Subscription(subscriber, b"#", 0, False, False, 0, None, 0))
    for number in range(300):
        router.routes(b"t/" + b"x" * 65_000 + b"%d" % number)
        assert planned(router) == router._planned <= 1 << 20
    router.add(Subscription(session(2), b"#", 0, False, False, 0, None, 0))  # plans are made anew, one by one
    router.routes(b"t/" + b"x" * 65_000 + b"299")
    assert planned(router) == router._planned
    assert router._plans


def test_a_session_keeps_no_routes_of_long_topics() -> None:
    held = session(1)
    held.subscribe(Subscription(held, b"#", 0, False, False, 0, None, 0))
    for length in (255, 256, 257, 65_000):
        assert held.route(b"x" * length) is not None
    assert [len(topic) for topic in held.subscriptions._routes or ()] == [255, 256]


def test_a_session_that_fails_keeps_no_other_from_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    """A session without a cursor gets a message once."""
    router = Router(0, flusher())
    sessions = [session(number, Faulty() if number == 1 else None) for number in range(3)]
    for each in sessions:
        subscription = Subscription(each, b"t", 0, False, False, 0, None, 0)
        each.subscribe(subscription)
        router.add(subscription)
    router.deliver(commit_of(b"x", b"x"))
    assert [each.counters.messages_sent for each in (sessions[0], sessions[2])] == [2, 2]
    assert "offering a message to b's1' failed" in caplog.text


def commit_of(*payloads: bytes) -> Commit:
    """Messages of topic t."""
    frames = [record.frame(int(Kind.MESSAGE), 0, 0, b"t", b"p", b"", payload) for payload in payloads]
    data = record.seal(frames, 0, 1, 0, 0)
    commit = Commit(data, 0, 0)
    count = len(payloads)
    commit.starts, commit.topics, commit.flags = record.split(data), [b"t"] * count, [0] * count
    commit.topic_offsets = list(range(count))
    return commit


def subscribe(router: Router, subscriber: Session, topic: bytes = b"t") -> Subscription:
    subscription = Subscription(subscriber, topic, 0, False, False, 0, None, router.delivered_end)
    subscriber.subscribe(subscription)
    router.add(subscription)
    return subscription


def payloads(socket: Socket) -> bytes:
    """The payloads of QoS 0 messages to t of one byte each."""
    return b"".join(socket.written)[5::6]


def test_a_commit_to_many_is_offered_in_turns_and_written_once_to_each() -> None:
    to = flusher()
    router = Router(0, to)
    sockets = [Socket() for _ in range(4000)]
    sessions = [session(number, socket, to) for number, socket in enumerate(sockets)]
    for each in sessions:
        subscribe(router, each)
    other = Socket()
    offered, written = [0], [0]
    rest = router.deliver(commit_of(b"a", b"b", b"c", b"d", b"e"))
    assert rest is not None
    has_rest = True
    while has_rest:
        offered.append(sum(each.counters.messages_sent for each in sessions))
        WriteBuffer(to, other).send(b"answer")  # type: ignore[arg-type]
        to.flush()
        written.append(sum(len(socket.written) for socket in sockets))
        assert len(other.written) == len(offered) - 1  # others do not wait
        assert router.is_delivering
        has_rest = rest()
    assert not router.is_delivering
    assert max(later - earlier for earlier, later in pairwise(offered)) <= 8192
    assert max(later - earlier for earlier, later in pairwise(written)) <= 1024
    to.flush()
    assert [len(socket.written) for socket in sockets] == [1] * len(sockets)
    assert {payloads(socket) for socket in sockets} == {b"abcde"}


def test_what_changes_between_two_turns_of_a_commit() -> None:
    to = flusher()
    router = Router(0, to)
    sockets = [Socket() for _ in range(10_001)]
    sessions = [session(number, socket, to) for number, socket in enumerate(sockets)]
    subscriptions = [subscribe(router, each) for each in sessions[:10_000]]
    rest = router.deliver(commit_of(b"a", b"b"))
    assert rest is not None
    sessions[9990].unsubscribe(b"t")
    router.remove(subscriptions[9990])
    sessions[9991].close()
    router.remove(subscriptions[9991])
    subscribe(router, sessions[10_000])
    while rest():
        to.flush()
    to.flush()
    got = [payloads(socket) for socket in sockets]
    assert [got[number] for number in (9990, 9991, 10_000)] == [b""] * 3
    del got[9990:9992]
    assert set(got[:-1]) == {b"ab"}
    assert router.deliver(commit_of(b"c")) is not None
    assert sessions[10_000].counters.messages_sent == 0  # the fan-out of the commit has begun, and it is the last one


def test_messages_that_were_held_are_offered_in_turns() -> None:
    router = Router(0, flusher())
    told: list[Session] = []
    for number in range(4000):
        nowhere = Nowhere()
        write_buffer = WriteBuffer(Flusher(nowhere), nowhere)  # type: ignore[arg-type]
        each = Session(b"s%d" % number, 1, 0, 10, write_buffer, Counters(), lambda *_: None, told.append)
        subscribe(router, each)
    commit = Commit(b"", 0, 0)
    commit.end = 10
    commit.moved = [Moved(number, 50, b"t", 0, number, ()) for number in range(3)]
    rest = router.deliver(commit)
    assert rest is not None
    counts = [len(told)]
    while rest():
        counts.append(len(told))
    counts.append(len(told))
    assert counts[-1] == 12_000
    assert counts[0] <= 8192
    assert max(later - earlier for earlier, later in pairwise(counts)) <= 8192


async def test_those_who_wait_for_a_commit_wait_until_all_have_it() -> None:
    to = flusher()
    router = Router(0, to)
    for number in range(5000):
        subscribe(router, session(number, None, to))
    waiting = [asyncio.create_task(router.delivered()) for _ in range(2)]
    await asyncio.gather(*waiting)  # nothing is under way
    rest = router.deliver(commit_of(b"a", b"b"))
    assert rest is not None
    waiting = [asyncio.create_task(router.delivered()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting.pop().cancel()  # and that does not end the others' wait
    has_rest = True
    while has_rest:
        to.flush()
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        has_rest = rest()
    await asyncio.gather(*waiting)
