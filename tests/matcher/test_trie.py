"""The trie against the plain definition of a match."""

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from matcher.names import MAX_LEVELS, is_valid_filter, matches
from matcher.trie import Trie

LEVEL = st.sampled_from([b"a", b"b", b"", b"$s", b"+"])
FILTERS = st.builds(
    lambda parts, tail: b"/".join([*parts, *tail]), st.lists(LEVEL, max_size=4), st.sampled_from([(b"#",), (b"a",), ()])
).filter(is_valid_filter)
TOPICS = st.lists(st.sampled_from([b"a", b"b", b"", b"$s"]), min_size=1, max_size=5).map(b"/".join).filter(bool)
STEPS = st.lists(st.tuples(st.booleans(), FILTERS, st.integers(0, 12), TOPICS), max_size=60)


def expected(registered: Iterable[tuple[bytes, int]], topic: bytes) -> list[int]:
    return sorted(value for topic_filter, value in registered if matches(topic_filter, topic))


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([0, 100, 1 << 20]))
def test_the_trie_matches_what_a_plain_search_matches(steps: list[tuple[bool, bytes, int, bytes]], cache: int) -> None:
    trie: Trie[int] = Trie(cache)
    registered: set[tuple[bytes, int]] = set()
    seen: list[bytes] = []
    for is_add, topic_filter, value, topic in steps:
        seen.append(topic)
        if is_add:
            trie.add(topic_filter, value)
            registered.add((topic_filter, value))
        else:
            assert trie.remove(topic_filter, value) is ((topic_filter, value) in registered)
            registered.discard((topic_filter, value))
        for probe in seen[-4:]:
            assert sorted(trie.match(probe)) == expected(registered, probe)
        assert len(trie) == len({name for name, _ in registered})
        assert sorted(trie.filters()) == sorted({name for name, _ in registered})
    for topic_filter, value in sorted(registered):
        assert trie.remove(topic_filter, value)
    assert trie.filters() == []
    assert all(trie.match(probe) == [] for probe in seen)


def test_add_twice_is_once() -> None:
    trie: Trie[str] = Trie()
    for _ in range(2):
        trie.add(b"a/+", "x")
        trie.add(b"a", "x")
    assert trie.match(b"a/b") == ["x"]
    assert trie.match(b"a") == ["x"]
    assert len(trie) == 2


def test_values_keep_their_order_when_they_become_many() -> None:
    trie: Trie[int] = Trie()
    for value in range(20):
        trie.add(b"a/#", value)
    assert trie.match(b"a/b") == list(range(20))
    for value in range(0, 20, 2):
        assert trie.remove(b"a/#", value)
    assert not trie.remove(b"a/#", 0)
    assert trie.match(b"a/b") == list(range(1, 20, 2))


def test_a_change_keeps_the_answers_of_other_first_levels() -> None:
    trie: Trie[str] = Trie()
    trie.add(b"home/+", "x")
    trie.add(b"farm/+", "y")
    home, farm = trie.match(b"home/a"), trie.match(b"farm/a")
    trie.add(b"home/#", "z")
    assert trie.match(b"farm/a") is farm
    assert trie.match(b"home/a") is not home
    assert sorted(trie.match(b"home/a")) == ["x", "z"]
    home = trie.match(b"home/a")
    trie.add(b"home/b", "w")
    assert trie.match(b"home/a") is home
    trie.add(b"+/a", "v")
    assert trie.match(b"farm/a") == ["v", "y"]


def test_first_filter_of_a_first_level_is_seen_by_cached_topics() -> None:
    trie: Trie[str] = Trie()
    assert trie.match(b"new/a") == []
    trie.add(b"new/+", "x")
    assert trie.match(b"new/a") == ["x"]
    assert trie.remove(b"new/+", "x")
    assert trie.match(b"new/a") == []


def test_the_deepest_filters_match_the_deepest_topic() -> None:
    trie: Trie[int] = Trie()
    topic = b"/".join([b"a"] * MAX_LEVELS)
    for depth in range(1, MAX_LEVELS):
        trie.add(b"a/" * depth + b"#", depth)
        trie.add(b"+/" * depth + b"#", -depth)
    assert len(trie.match(topic)) == 2 * (MAX_LEVELS - 1)
    assert len(trie.filters()) == 2 * (MAX_LEVELS - 1)


def test_the_cache_is_bounded() -> None:
    trie: Trie[int] = Trie(2000)
    trie.add(b"#", 1)
    answers = [trie.match(b"t/%d" % i) for i in range(1000)]
    survivors = sum(trie.match(b"t/%d" % i) is answers[i] for i in reversed(range(1000)))
    assert 0 < survivors < 2000 // 16


def test_the_cache_is_bounded_in_bytes() -> None:
    trie: Trie[int] = Trie(1 << 14)
    for number in range(100):
        trie.match(b"t/" + b"x" * 8000 + b"%d" % number)
        assert sum(map(len, (*trie._young, *trie._old))) <= 8 << 14
    assert trie._young
