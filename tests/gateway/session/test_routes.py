"""A session's own answer to what matches a topic: the same for few subscriptions and for many, at a bounded cost."""

import random

from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.names import matches
from tests.gateway.delivery.test_router import session

LEVELS = (b"a", b"b", b"", b"$x", b"+", b"#")


def random_filter(chance: random.Random) -> bytes:
    levels = chance.choices(LEVELS[:5], k=chance.randint(1, 4))
    return b"/".join([*levels, b"#"] if chance.random() < 0.3 else levels)


def subscribe(held: Session, topic_filter: bytes, identifier: int) -> None:
    held.subscribe(Subscription(held, topic_filter, 1, False, False, identifier, None, 0))


def test_many_subscriptions_are_matched_as_few_are() -> None:
    chance = random.Random(7)
    held = session(1)
    filters: dict[bytes, int] = {}
    for number in range(1, 3000):
        topic_filter = random_filter(chance)
        if chance.random() < 0.4 and filters:
            gone = chance.choice(list(filters))
            del filters[gone]
            assert held.unsubscribe(gone) is not None
        else:
            subscribe(held, topic_filter, number)
            filters[topic_filter] = number
        topic = b"/".join(chance.choices(LEVELS[:4], k=chance.randint(1, 4)))
        route = held.route(topic)
        wanted = sorted(number for name, number in filters.items() if matches(name, topic))
        assert sorted(route.identifiers if route is not None else ()) == wanted
    assert held.subscriptions._trie is not None


def test_a_topic_that_is_new_to_many_long_filters_costs_little() -> None:
    """The levels of a filter are not compared with those of every topic: 1,024 of 128 levels."""
    held = session(1)
    deep = b"/".join([b"x"] * 127)
    for number in range(1024):
        subscribe(held, deep + b"/%d" % number, 1)
    looked = 0

    class Counting(dict[bytes, Subscription]):
        def values(self):  # type: ignore[no-untyped-def]
            nonlocal looked
            looked += len(self)
            return super().values()

    held.subscriptions._by_filter = Counting(held.subscriptions._by_filter)
    for number in range(100):
        assert held.route(deep + b"/new/%d" % number) is None
    assert looked == 1024, "they are looked at once, for the trie"
