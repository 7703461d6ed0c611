"""The commits that a gateway is sent, and how it merges them."""

from collections.abc import Sequence
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from notify.event_receiver import EventReceiver
from notify.feed import LARGE, Feed
from notify.wire import decode_event
from record.layout import FLAG_ADDRESSED, Kind
from store.api import Addressed, Commit, Moved


class Log:
    """Commits one behind the other."""

    def __init__(self) -> None:
        self.end = 100

    def commit(self, *messages: tuple[bytes, bytes], flags: int = 0, between: int = 0) -> Commit:
        """Of (topic, payload), with a control record in front as each gateway's append has one."""
        frames = [record.frame(Kind.PRODUCED, 0, 0, b"p", b"", b"", b"[1,1]")]
        frames += [record.frame(Kind.MESSAGE, flags, 0, topic, b"c", b"", payload) for topic, payload in messages]
        self.end += between
        data = record.seal(frames, self.end, 1, 5, self.end)
        commit = Commit(data, self.end, 5)
        commit.starts, _, commit.flags, commit.topics, _, _ = (list(column)[1:] for column in record.scan(data))
        commit.topic_offsets = list(range(len(messages)))
        self.end = commit.end
        return commit


def told(commit: Commit) -> list[tuple[bytes, bytes, int]]:
    return [
        (commit.topics[i], record.decode(commit.data, commit.starts[i])[6], commit.topic_offsets[i])
        for i in range(len(commit.topics))
    ]


def open_feed(filters: Sequence[bytes] | None = None) -> tuple[Feed, list[bytes], list[bool]]:
    """A feed, what it sent, and whether it has room."""
    sent: list[bytes] = []
    room = [True]
    feed = Feed(100, filters is not None, lambda: room[0], sent.append)
    if filters is not None:
        feed.watch(filters, ())
    return feed, sent, room


def test_a_gateway_that_wants_everything_is_sent_everything():
    feed, sent, _ = open_feed()
    log = Log()
    commit = log.commit((b"a/b", b"1"), (b"c", b"2"))
    commit.filter_offsets = [((b"a/+", 7), (b"#", 9)), ()]
    feed.send_commit(commit)
    (body,) = sent
    event = decode_event(body)
    assert told(event.commit) == [(b"a/b", b"1", 0), (b"c", b"2", 1)]
    assert event.commit.filter_offsets == commit.filter_offsets
    assert (event.since, event.commit.position, event.commit.end) == (100, 100, log.end)
    assert event.commit.flags == commit.flags


def test_a_gateway_is_sent_everything_until_its_wishes_are_known():
    feed, sent, _ = open_feed()
    routed = Feed(100, True, lambda: True, sent.append)
    log = Log()
    routed.send_commit(log.commit((b"t", b"1")))
    assert len(sent) == 1
    routed.watch([], [])
    routed.send_commit(log.commit((b"t", b"1")))
    assert len(sent) == 1
    feed.watch([], [])  # one that is not routed stays so
    feed.send_commit(log.commit((b"t", b"1")))
    assert len(sent) == 2


def test_a_gateway_is_sent_matching_commits_and_the_position():
    feed, sent, _ = open_feed([b"a/+"])
    receiver = EventReceiver(100)
    log = Log()
    feed.send_commit(log.commit((b"c", b"1")))
    assert sent == []  # nothing to tell, until something speaks of it
    feed.send_end()
    (nothing,) = receiver.commits_of(sent[0])
    assert (nothing.end, nothing.data, nothing.missed_from) == (log.end, b"", -1)
    assert receiver.position == log.end
    feed.send_end()
    assert len(sent) == 1
    feed.send_commit(log.commit((b"c", b"2"), (b"a/b", b"3"), (b"d", b"4")))
    (commit,) = receiver.commits_of(sent[-1])
    assert told(commit) == [(b"a/b", b"3", 1)]
    feed.watch([b"d"], [b"a/+"])
    feed.send_commit(log.commit((b"a/b", b"5"), (b"d", b"6")))
    assert [told(each) for each in receiver.commits_of(sent[-1])] == [[(b"d", b"6", 1)]]
    feed.send_commit(log.commit((b"$inbox/c", b"7"), flags=FLAG_ADDRESSED))  # whoever has the client
    assert [told(each) for each in receiver.commits_of(sent[-1])] == [[(b"$inbox/c", b"7", 0)]]
    assert receiver.gaps == 0


def test_control_records_are_sent_to_all_gateways():
    feed, sent, _ = open_feed([])
    log = Log()
    commit = log.commit()
    commit.users, commit.rules, commit.dead_letters, commit.again = [b"u"], [b""], [b"g"], [b"h"]
    commit.addressed = [Addressed(7, b"c", b"$inbox/c", None)]
    commit.moved = [Moved(1, 2, b"t", 0, 3, ()), Moved(4, 5, b"$inbox/c", FLAG_ADDRESSED, 6, ((b"#", 1),))]
    feed.send_commit(commit)
    (again,) = EventReceiver(100).commits_of(sent[0])
    assert (again.users, again.rules, again.dead_letters, again.again) == ([b"u"], [b""], [b"g"], [b"h"])
    assert again.addressed == commit.addressed
    assert again.moved == commit.moved[1:]  # the first is nobody's here


def test_large_messages_do_not_ride_along():
    feed, sent, _ = open_feed()
    log = Log()
    commit = log.commit((b"t", b"small"), (b"t", bytes(LARGE)))
    feed.send_commit(commit)
    (again,) = EventReceiver(100).commits_of(sent[0])
    assert told(again) == [(b"t", b"small", 0)]
    assert [(each.position, each.topic_offset) for each in again.moved] == [(100 + commit.starts[1], 1)]
    assert len(sent[0]) < 1000


def test_a_slow_gateway_learns_that_it_missed_commits():
    feed, sent, room = open_feed()
    receiver = EventReceiver(100)
    log = Log()
    room[0] = False
    first, second = log.commit((b"t", b"1")), log.commit((b"t", b"2"))
    feed.send_commit(first)
    feed.send_commit(second)
    assert sent == []
    room[0] = True
    feed.send_commit(log.commit((b"t", b"3")))
    gap, commit = receiver.commits_of(sent[0])
    assert (gap.missed_from, gap.position, gap.topics) == (100, second.end, [])
    assert told(commit) == [(b"t", b"3", 0)]
    room[0] = False
    feed.send_commit(log.commit((b"t", b"4")))
    feed.send_end()  # an answer is about to speak of it
    gap, nothing = receiver.commits_of(sent[1])
    assert (gap.missed_from, gap.position) == (commit.end, log.end)
    assert (nothing.end, nothing.missed_from) == (log.end, -1)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.integers(0, 3))
def test_events_are_ordered_without_repeats_and_gaps_are_reported(arrivals: list[tuple[int, bool]], seed: int):
    feed, sent, _ = open_feed()
    log = Log()
    commits = []
    for number in range(10):
        commits.append(log.commit((b"t", b"%d" % number), between=48 * (number % 3 == seed)))
        feed.send_commit(commits[-1])
    receiver = EventReceiver(100)
    heard: list[int] = []
    covered: list[tuple[int, int]] = []
    for index, is_reach in arrivals:
        reached = receiver.advance(commits[index].end) if is_reach else receiver.commits_of(sent[index])
        for commit in reached:
            if commit.missed_from >= 0:
                covered.append((commit.missed_from, commit.position))
            else:
                heard.append(int(told(commit)[0][1]))
                covered.append((commits[heard[-1]].position, commit.end))
    assert heard == sorted(set(heard))
    missed = [number for number in range(10) if commits[number].end <= receiver.position and number not in heard]
    for number in missed:
        assert any(begin <= commits[number].position and commits[number].end <= end for begin, end in covered)


@pytest.mark.parametrize("body", [b"", b"x" * 20, pack("<QQQQIII", 0, 0, 9, 0, 5, 0, 0)])
def test_malformed_events_are_errors(body: bytes):
    with pytest.raises(ValueError, match="event"):
        decode_event(body)
