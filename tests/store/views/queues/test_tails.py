"""Ends remembered are the ends that were put, or forgotten: never others. Tails are the same compiled and plain."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from record import pack_refs, tag_of
from store.views.queues.tails import Ends, PlainEnds, PlainTails, Tails, plain_queue_digest, queue_digest

ENDS = [pytest.param(Ends, id="compiled"), pytest.param(PlainEnds, id="plain")]
TAILS = [pytest.param(Tails, id="compiled"), pytest.param(PlainTails, id="plain")]
TOPICS = [b"a/b", b"a/c", b"a", b"", b"/", *(b"x" * size + b"/t" for size in (43, 44, 45, 46)), b"x" * 45, b"y" * 300]


MOST = 300  # partitions of a parent topic


def reference(number: int, topic: bytes = b"") -> bytes:
    return pack_refs([number], [100], [7], [tag_of(topic, b"")])


def known(kind: type, partitions: int, counts: dict[bytes, int]) -> PlainTails:
    """Tails that know the end of every queue of `TOPICS`."""
    tails = kind(100_000, partitions, counts)
    for topic in TOPICS:
        tails.learn(queue_digest(b"t" + topic), 10)
        for partition in range(MOST):
            tails.learn(queue_digest(b"p" + topic.split(b"/")[0] + b"\0" + partition.to_bytes(2, "big")), 20)
    return tails


def fail(topic: bytes) -> None:
    raise AssertionError(f"{topic!r} is known")


def drained(tails: PlainTails, prefix: bytes = b"q") -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    tails.drain(prefix, lambda key, value: rows.append((key, value)))
    tails.forget()
    return rows


@pytest.mark.parametrize("kind", ENDS)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1 << 60))))
def test_the_newest_end_is_the_one_that_is_found(kind, puts):
    ends, model = kind(1 << 16), {}
    for number, end in puts:
        ends.put(queue_digest(b"%d" % number), end)
        model[number] = end
    for number in range(60):
        assert ends.get(queue_digest(b"%d" % number)) == model.get(number, -1)


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("limit", [1, 10_000, 1_000_000])
def test_many_more_than_the_limit(kind, limit):
    """Nearly all tails up to the limit are remembered, and no memory is used beyond it."""
    ends = kind(limit)
    count = 50_000
    for again in range(2):
        for number in range(count):
            ends.put(queue_digest(b"%d" % number), number + again)
    found = [ends.get(queue_digest(b"%d" % number)) for number in range(count)]
    kept = sum(end >= 0 for end in found)
    assert all(end in (-1, number + 1) for number, end in enumerate(found))
    assert kept <= 2 * limit
    assert kept >= min(limit, count) * 9 // 10


@pytest.mark.skipif(Ends is PlainEnds, reason="a dictionary has no places")
def test_forgotten_tails_are_not_found_in_the_older_table():
    """Digests of one place, more than it takes, put again and again while the table grows."""
    ends, model = Ends(1 << 16), {}
    for again in range(3):
        for number in range(9_000):
            digest = (number if number % 3 else number << 48).to_bytes(8, "big") + number.to_bytes(8, "big")
            ends.put(digest, number + again)
            model[digest] = number + again
            if number % 100 == 0:
                assert all(ends.get(digest) in (-1, end) for digest, end in model.items())
    assert sum(ends.get(digest) < 0 for digest in model) > 1000


@pytest.mark.parametrize("kind", ENDS)
def test_a_digest_has_16_bytes(kind):
    ends = kind(10)
    with pytest.raises(ValueError, match="16 bytes"):
        ends.put(b"short", 1)
    with pytest.raises(ValueError, match="16 bytes"):
        ends.get(b"short")


@given(st.binary(max_size=600))
def test_the_digest_is_blake2b(name):
    assert queue_digest(name) == plain_queue_digest(name) == blake2b(name, digest_size=16).digest()


steps = st.one_of(
    st.tuples(st.just("messages"), st.lists(st.integers(0, len(TOPICS) - 1), max_size=40)),
    st.tuples(st.just("one"), st.integers(0, 30)),
    st.tuples(st.just("learn"), st.integers(0, 30)),
    st.tuples(st.just("drain"), st.just(0)),
    st.tuples(st.just("count"), st.tuples(st.sampled_from(TOPICS), st.integers(1, MOST))),
)


@given(st.lists(steps, max_size=30), st.integers(1, 5))
def test_compiled_and_plain_are_the_same(history, partitions):
    counts: dict[bytes, int] = {}  # partitions by parent topic
    one, other = known(Tails, partitions, counts), known(PlainTails, partitions, counts)
    number = 0
    for step, what in history:
        if step == "messages":
            topics = [TOPICS[i] for i in what]
            references = [reference(number + i, topic) for i, topic in enumerate(topics)]
            offsets: list[int] = []
            expected: list[int] = []
            one.enter_messages(topics, references, offsets, fail)
            other.enter_messages(topics, references, expected, fail)
            assert offsets == expected
            number += len(topics)
        elif step == "one":
            digest = queue_digest(b"d%d" % what)
            assert one.enter(digest, reference(number)) == other.enter(digest, reference(number))
        elif step == "learn":
            one.learn(queue_digest(b"d%d" % what), 5)
            other.learn(queue_digest(b"d%d" % what), 5)
        elif step == "count":
            counts[what[0].split(b"/")[0]] = what[1]
        else:
            assert drained(one) == drained(other)
        assert (one.dirty, one.references) == (other.dirty, other.references)
    names = [b"t" + topic for topic in TOPICS] + [b"d%d" % i for i in range(32)]
    for digest in map(queue_digest, names):
        first = one.first_waiting(digest)
        assert first == other.first_waiting(digest)
        assert one.end(digest) == other.end(digest)
        for offset in range(max(first, 0), one.end(digest) + 2 if first >= 0 else 0):
            assert one.waiting(digest, offset, 3) == other.waiting(digest, offset, 3)
    assert drained(one) == drained(other)


@pytest.mark.parametrize("kind", TAILS)
def test_unknown_ends_are_asked_for_once_and_a_message_enters_both_its_queues_or_none(kind):
    tails = kind(100, 2, {b"a": 4, b"c": 4, b"e": 4})
    topics = [b"a/b", b"c/d", b"a/b", *(b"e/%d" % i for i in range(40))] * 2
    refs = [reference(i, topic) for i, topic in enumerate(topics)]
    with pytest.raises(KeyError):
        tails.enter_messages(topics, refs, [], lambda topic, _: tails.learn(queue_digest(b"t" + topic), 5))
    assert (tails.dirty, tails.references) == (0, 0)
    asked: list[bytes] = []

    def learn(topic: bytes, tag: int) -> None:
        assert tag == tag_of(topic, b"")
        asked.append(topic)
        tails.learn(queue_digest(b"t" + topic), 5)
        tails.learn(queue_digest(b"p" + topic[:1] + b"\0" + (tag % 4).to_bytes(2, "big")), 7)

    offsets: list[int] = []
    tails.enter_messages(topics, refs, offsets, learn)
    assert asked == list(dict.fromkeys(topics))
    assert offsets == [5, 5, 6, *[5] * 40, 7, 6, 8, *[6] * 40]
    partition = queue_digest(b"pa\0" + (tag_of(b"a/b", b"") % 4).to_bytes(2, "big"))
    assert tails.waiting(partition, 7, 9) == refs[0] + refs[2] + refs[43] + refs[45]
    assert tails.references == 2 * len(topics)


@pytest.mark.parametrize("kind", TAILS)
def test_rows_are_sorted_and_hold_what_waited(kind):
    tails, model = kind(1 << 16, 1, {}), {}
    for number in range(5000):
        digest = queue_digest(b"%d" % (number % 1700))
        tails.learn(digest, 0)
        assert tails.enter(digest, reference(number)) == number // 1700
        model.setdefault(digest, []).append(reference(number))
    rows = drained(tails, b"prefix")
    assert rows == [(b"prefix" + digest + bytes(8), b"".join(model[digest])) for digest in sorted(model)]
    assert (tails.dirty, tails.references, drained(tails)) == (0, 0, [])
    digest = queue_digest(b"0")
    assert (tails.end(digest), tails.first_waiting(digest), tails.waiting(digest, 0, 9)) == (3, -1, b"")
    assert tails.enter(digest, reference(9)) == 3
    assert drained(tails) == [(b"q" + digest + (3).to_bytes(8, "big"), reference(9))]


@pytest.mark.parametrize("kind", TAILS)
def test_tails_of_very_many_queues_at_once(kind):
    tails = kind(1 << 20, 1, {})
    for again in range(2):
        for number in range(100_000):
            digest = queue_digest(b"%d" % number)
            if not again:
                tails.learn(digest, 0)
            assert tails.enter(digest, reference(number)) == again
        assert len(drained(tails)) == 100_000


@pytest.mark.parametrize("kind", TAILS)
def test_invalid_digests_references_and_missing_waiters(kind):
    tails = kind(10, 1, {})
    digest = queue_digest(b"q")
    tails.learn(digest, 3)
    for call in (tails.end, tails.first_waiting, lambda short: tails.waiting(short, 0, 1)):
        with pytest.raises(ValueError, match="16 bytes"):
            call(b"short")
    for call in (lambda: tails.enter(digest, b"short"), lambda: tails.enter_messages([b"a"], [b"short"], [], fail)):
        with pytest.raises(ValueError, match="24 bytes"):
            call()
    with pytest.raises(ValueError, match="different length"):
        tails.enter_messages([b"a"], [], [], fail)
    with pytest.raises(ValueError, match="does not wait"):
        tails.waiting(digest, 2, 1)
    assert tails.enter(queue_digest(b"unknown"), reference(1)) == -1
