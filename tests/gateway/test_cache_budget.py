"""Caches by topic have bounds in bytes: many small ones share a bound, and long topics are not cached."""

from gateway.auth.rules.permissions import RuleBook
from gateway.management.areas.access import parse_rule
from gateway.mqtt.aliases import TopicAliases
from gateway.rpc.limits import RpcLimits
from gateway.rpc.producing.messages import MessageCheck
from gateway.session.subscriptions import Subscriptions
from matcher.cache_budget import ENTRY_BYTES, CacheBudget
from notify.interest import Interest
from store.log.tail_cache import TailCache

LIMIT = 16 << 20  # bytes, of verdicts and of routes


def test_all_caches_are_cleared_when_the_budget_is_spent() -> None:
    budget: CacheBudget[bool] = CacheBudget(10 * (ENTRY_BYTES + 3))
    caches: list[dict[bytes, bool]] = [{} for _ in range(5)]
    for number in range(10):
        budget.add(caches[number % 5], b"t/%d" % number, True, 0)
    assert sum(map(len, caches)) == 10
    budget.add(caches[3], b"t/x", False, 0)
    assert [len(each) for each in caches] == [0, 0, 0, 1, 0]
    assert caches[3] == {b"t/x": False}


def test_a_cleared_cache_is_cleared_again() -> None:
    budget: CacheBudget[bool] = CacheBudget(2 * (ENTRY_BYTES + 1))
    cache: dict[bytes, bool] = {}
    for number in range(9):
        budget.add(cache, b"%d" % number, True, 0)
        assert 1 <= len(cache) <= 2


def test_a_large_value_counts() -> None:
    budget: CacheBudget[bytes] = CacheBudget(10_000)
    cache: dict[bytes, bytes] = {}
    for number in range(9):
        budget.add(cache, b"%d" % number, bytes(4_000), 4_000)
    assert len(cache) <= 2


def test_verdicts_of_all_connections_are_bounded() -> None:
    book = RuleBook([parse_rule("allow publish a/#")], b"")
    clients = [book.permissions(b"c%d" % number, False, "") for number in range(150)]
    for client in clients:
        assert client is not None
        for number in range(1000):
            assert client.may_publish(b"a/%d" % number)
    kept = sum(len(client._verdicts) for client in clients if client is not None)
    assert 0 < kept <= LIMIT // ENTRY_BYTES


def test_routes_of_all_sessions_are_bounded() -> None:
    sessions = [Subscriptions() for _ in range(150)]
    for session in sessions:
        for number in range(1000):
            assert session.route(b"a/%d" % number) is None
    kept = sum(len(session._routes or ()) for session in sessions)
    assert 0 < kept <= LIMIT // ENTRY_BYTES


def test_ended_sessions_leave_no_routes() -> None:
    session = Subscriptions()
    session.route(b"a")
    routes = session._routes
    session.forget_routes()
    assert not routes


def test_long_topics_are_not_cached() -> None:
    interest = Interest()
    interest.change([b"t/#"], [])
    wanted = [interest.wants(b"t/" + text * 10_000) for text in (b"a", b"b")]
    assert (wanted, interest._known) == ([True, True], {})
    aliases = TopicAliases(10)
    for _ in range(3):
        assert aliases.give(b"t" * 2000) == 0
    check = MessageCheck(RpcLimits(), lambda: True)
    assert [check._learn_topic(b"t/" + b"a" * size) for size in (9, 1000)] == [True, True]
    assert check._names == {b"t/" + b"a" * 9}


def test_the_tail_counts_what_a_small_batch_takes() -> None:
    tail = TailCache(10_000)
    for number in range(1000):
        tail.add(10 * number, bytes(10))
    assert sum(map(len, tail._batches)) <= 1000
