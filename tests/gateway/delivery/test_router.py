"""The router: its plans are bounded by what they refer to, not by the number of topics alone; a session's fault is its
own."""

import pytest

import record
from gateway.delivery.router import Router
from gateway.net.write_buffer import Flusher, WriteBuffer
from gateway.observe.counters import Counters
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from record.layout import Kind
from store.api import Commit


class Nowhere:
    """A loop and a transport that do nothing."""

    def call_soon(self, *_: object) -> None: ...

    def call_later(self, *_: object) -> None: ...

    def write(self, data: bytes) -> None: ...


class Faulty(Nowhere):
    """It fails."""

    def call_soon(self, *_: object) -> None:
        raise RuntimeError("a fault")


def session(number: int, nowhere: Nowhere | None = None) -> Session:
    nowhere = nowhere or Nowhere()
    write_buffer = WriteBuffer(Flusher(nowhere), nowhere)  # type: ignore[arg-type]
    return Session(b"s%d" % number, 1, 0, 10, write_buffer, Counters(), lambda *_: None, lambda _: None)


def test_plans_of_many_subscribers_and_topics_stay_within_the_bound() -> None:
    router = Router(0)
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
    router = Router(0)
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
    router = Router(0)
    sessions = [session(number, Faulty() if number == 1 else None) for number in range(3)]
    for each in sessions:
        subscription = Subscription(each, b"t", 0, False, False, 0, None, 0)
        each.subscribe(subscription)
        router.add(subscription)
    framed = record.frame(int(Kind.MESSAGE), 0, 0, b"t", b"p", b"", b"x")
    data = record.seal([framed, framed], 0, 1, 0, 0)
    commit = Commit(data, 0, 0)
    commit.starts, commit.topics, commit.flags, commit.topic_offsets = record.split(data), [b"t"] * 2, [0] * 2, [0, 1]
    router.deliver(commit)
    assert [each.counters.messages_sent for each in (sessions[0], sessions[2])] == [2, 2]
    assert "offering a message to b's1' failed" in caplog.text
