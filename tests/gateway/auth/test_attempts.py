"""Wrong passwords by source, with a clock in the test's hand."""

import pytest

from gateway.auth import attempts
from gateway.auth.attempts import FailedLogins, LoginDelays, source_of


def test_failures_are_limited_per_minute_and_source() -> None:
    wrong = FailedLogins(3)
    for _ in range(3):
        assert wrong.may_try("a", 0.0)
        wrong.count("a", 0.0)
    assert not wrong.may_try("a", 0.0)
    assert wrong.may_try("b", 0.0)
    assert not wrong.may_try("a", 19.9)
    assert wrong.may_try("a", 20.1)
    wrong.count("a", 20.1)
    assert not wrong.may_try("a", 20.1)


def test_failed_logins_are_unlimited_when_the_limit_is_0() -> None:
    wrong = FailedLogins(0)
    for _ in range(100):
        wrong.count("a", 0.0)
    assert wrong.may_try("a", 0.0)


def test_sources_are_bounded_and_the_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MAX_BUCKETS", 2)
    wrong = FailedLogins(1)
    for source in ("a", "b", "c"):
        wrong.count(source, 0.0)
    assert [wrong.may_try(source, 0.0) for source in ("a", "b", "c")] == [True, False, False]


def test_a_name_that_is_guessed_at_becomes_slow_little_by_little_and_quick_again() -> None:
    slowness = LoginDelays(1)
    for _ in range(10):
        slowness.count(b"alice", 0.0)
        assert slowness.delay(b"alice", 0.0) == 0.0
    delays = []
    for _ in range(4):
        slowness.count(b"alice", 0.0)
        delays.append(slowness.delay(b"alice", 0.0))
    assert delays == sorted(delays)
    assert delays[0] > 0
    assert delays[-1] == attempts._LONGEST
    assert slowness.delay(b"bob", 0.0) == 0.0
    for _ in range(1000):
        slowness.count(b"alice", 0.0)
    assert slowness.delay(b"alice", attempts._LONGEST + 6.0) == 0.0  # however long it went on


def test_names_are_bounded_and_there_may_be_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_MAX_BUCKETS", 2)
    slowness = LoginDelays(1)
    for name in (b"a", b"b", b"c"):
        for _ in range(20):
            slowness.count(name, 0.0)
    assert [slowness.delay(name, 0.0) > 0 for name in (b"a", b"b", b"c")] == [False, True, True]
    free = LoginDelays(0)
    for _ in range(1000):
        free.count(b"a", 0.0)
    assert free.delay(b"a", 0.0) == 0.0


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("192.0.2.1:5000", "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::]:9", "2001:db8:1:2::/64"),
        ("[::ffff:192.0.2.1]:5000", "192.0.2.1"),
        ("[fe80::1%eth0]:5000", "fe80::/64"),
        ("a local process", "a local process"),
    ],
)
def test_which_addresses_count_as_one_source(peer: str, source: str) -> None:
    assert source_of(peer) == source
