"""Sessions, retained values and group offsets: what each control record does, through the engine's face."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import record
from record.layout import FLAG_ADDRESSED, FLAG_RETAIN, FLAG_TRACK_ID, Kind
from store import control
from store.api import Appended, Commit, Outbound, StoredSubscription, filter_queue, topic_queue
from store.config import StoreConfig
from store.engine import Engine

pytestmark = pytest.mark.any_store

NEVER = 0xFFFFFFFF
CONFIG = StoreConfig(segment_size=1 << 16)


class Bench:
    """An engine that can be reopened under the test's hands."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self.engine = engine
        self.commits: list[Commit] = []
        engine.on_commit(self.commits.append)

    async def append(self, *frames: bytes) -> Appended:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.engine.append(list(frames), answer.set_result)
        done = await answer
        assert done.error is None
        return done

    async def reopen(self) -> None:
        await self.engine.close()
        self.engine = await Engine.open(self.path, CONFIG)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, await Engine.open(tmp_path, CONFIG))
    yield made
    await made.engine.close()


def message(topic: bytes, payload: bytes = b"x", flags: int = 0, publisher: bytes = b"", packet_id: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, packet_id, topic, publisher, b"", payload)


def wish(topic_filter: bytes, qos: int = 1) -> StoredSubscription:
    return StoredSubscription(topic_filter, qos, True, False, 2, 9, 0, 0)


async def test_a_session_and_its_subscriptions(bench: Bench):
    assert await bench.engine.session(b"c") is None
    await bench.append(message(b"a/b"), message(b"a/b"), control.SessionOpened(1, 60, True).frame(b"c"))
    done = await bench.append(
        message(b"a/b"), control.subscribed(b"c", [wish(b"a/b"), wish(b"a/+", 2)]), message(b"a/b")
    )
    at = done.positions[1]
    expected = [
        StoredSubscription(b"a/+", 2, True, False, 2, 9, at, 0),
        StoredSubscription(b"a/b", 1, True, False, 2, 9, at, 3),
    ]
    for _ in range(2):
        found = await bench.engine.session(b"c")
        assert found is not None
        assert (found.epoch, found.expiry_interval, found.closed_at) == (1, 60, 0)
        assert found.subscriptions == expected
        assert (await bench.engine.bounds(filter_queue(b"a/+"))).end == 1
        await bench.reopen()


async def test_commits_say_which_filter_queues_a_message_entered(bench: Bench):
    await bench.append(
        message(b"a/b"),
        control.SessionOpened(1, 60, True).frame(b"c"),
        control.subscribed(b"c", [wish(b"a/+"), wish(b"#")]),
        message(b"a/b"),
        message(b"$SYS/x"),
        control.Unsubscribed([b"a/+", b"#"]).frame(b"c"),
        message(b"a/b"),
    )
    (commit,) = bench.commits
    assert commit.topic_offsets == [0, 1, 0, 2]
    assert commit.filter_offsets is not None
    assert [sorted(entered) for entered in commit.filter_offsets] == [[], [(b"#", 0), (b"a/+", 0)], [], []]
    await bench.append(message(b"a/b"))
    assert bench.commits[1].filter_offsets is None


@pytest.mark.engine_only
async def test_subscribing_again_keeps_the_cursor_and_takes_the_options(bench: Bench):
    await bench.append(control.SessionOpened(1, 60, True).frame(b"c"), control.subscribed(b"c", [wish(b"a/#")]))
    await bench.append(
        *[message(b"a") for _ in range(5)], control.CursorsCommitted({b"a/#": 3, b"none": 1}).frame(b"c")
    )
    await bench.append(control.CursorsCommitted({b"a/#": 2}).frame(b"c"), control.subscribed(b"c", [wish(b"a/#", 0)]))
    found = await bench.engine.session(b"c")
    assert found is not None
    (subscription,) = found.subscriptions
    assert (subscription.offset, subscription.qos) == (3, 0)
    assert subscription.start_position < bench.commits[1].position


async def test_a_filter_queue_is_shared_and_survives_its_sessions(bench: Bench):
    for client in (b"c", b"d"):
        await bench.append(control.SessionOpened(1, 60, True).frame(client), control.subscribed(client, [wish(b"a/+")]))
    await bench.append(message(b"a/1"), control.SessionEnded(1).frame(b"c"), message(b"a/2"))
    await bench.append(control.Unsubscribed([b"a/+"]).frame(b"d"), message(b"a/3"))
    assert (await bench.engine.bounds(filter_queue(b"a/+"))).end == 2
    await bench.reopen()
    done = await bench.append(control.subscribed(b"d", [wish(b"a/+")]), message(b"a/4"))
    found = await bench.engine.session(b"d")
    assert found is not None
    assert found.subscriptions[0].offset == 2
    assert found.subscriptions[0].start_position == done.positions[0]
    got = await bench.engine.fetch(filter_queue(b"a/+"), 0, 10, 10_000)
    assert [record.decode(got.data, start)[3] for start in record.split(got.data)] == [b"a/1", b"a/2", b"a/4"]


async def test_an_old_epoch_is_fenced(bench: Bench):
    await bench.append(control.SessionOpened(1, 60, True).frame(b"c"), control.subscribed(b"c", [wish(b"a")]))
    await bench.append(control.SessionOpened(2, 90, False).frame(b"c"))
    await bench.append(
        control.SessionClosed(1, 0, 1000).frame(b"c"),
        control.SessionEnded(1).frame(b"c"),
        control.SessionOpened(1, 5, True).frame(b"c"),
    )
    found = await bench.engine.session(b"c")
    assert found is not None
    assert (found.epoch, found.expiry_interval, found.closed_at, len(found.subscriptions)) == (2, 90, 0, 1)
    await bench.append(control.SessionEnded(2).frame(b"c"))
    assert await bench.engine.session(b"c") is None


async def test_clean_start_drops_what_was(bench: Bench):
    await bench.append(
        control.SessionOpened(1, 60, True).frame(b"c"),
        control.subscribed(b"c", [wish(b"a/+")]),
        control.OutboundChanged(sent=[(5, b"a/+", 0, 2)]).frame(b"c"),
        message(b"a/b", flags=FLAG_TRACK_ID | 2, publisher=b"c", packet_id=3),
    )
    await bench.append(control.SessionOpened(2, 60, True).frame(b"c"), message(b"a/b"))
    found = await bench.engine.session(b"c")
    assert found is not None
    assert (found.subscriptions, found.inbound, found.outbound) == ([], [], [])
    assert (await bench.engine.bounds(filter_queue(b"a/+"))).end == 1


async def test_expired_sessions_are_listed_in_order(bench: Bench):
    for client, interval in ((b"soon", 10), (b"late", 20), (b"never", NEVER), (b"open", 5), (b"now", 0)):
        await bench.append(control.SessionOpened(1, interval, True).frame(client))
        if client != b"open":
            await bench.append(control.SessionClosed(1, interval, 1_000_000).frame(client))
    assert await bench.engine.session(b"now") is None
    for _ in range(2):
        assert await bench.engine.sessions_open(None, 10) == [(b"open", 1, 5, b"")]
        assert await bench.engine.sessions_open(b"open", 10) == []
        assert await bench.engine.sessions_expired(1_009_999, 10) == []
        assert await bench.engine.sessions_expired(1_010_000, 10) == [(b"soon", 1)]
        assert await bench.engine.sessions_expired(1 << 50, 10) == [(b"soon", 1), (b"late", 1)]
        assert await bench.engine.sessions_expired(1 << 50, 1) == [(b"soon", 1)]
        await bench.reopen()
    await bench.append(control.SessionOpened(2, 10, False).frame(b"soon"), control.SessionEnded(1).frame(b"late"))
    assert await bench.engine.sessions_expired(1 << 50, 10) == []


async def test_qos_2_in_both_directions(bench: Bench):
    await bench.append(control.SessionOpened(1, 60, True).frame(b"c"))
    for packet_id in (7, 8, 9):
        await bench.append(message(b"a", flags=FLAG_TRACK_ID | 2, publisher=b"c", packet_id=packet_id))
    await bench.append(message(b"a", flags=FLAG_TRACK_ID | 2, publisher=b"nobody", packet_id=1))
    await bench.append(control.InboundReleased([8, 100]).frame(b"c"))
    await bench.append(control.OutboundChanged(sent=[(1, b"a", 0, 2), (2, b"a", 1, 2), (3, b"a", 2, 1)]).frame(b"c"))
    await bench.append(control.OutboundChanged(received=[2, 44], completed=[1]).frame(b"c"))
    for _ in range(2):
        found = await bench.engine.session(b"c")
        assert found is not None
        assert found.inbound == [7, 9]
        assert found.outbound == [Outbound(2, b"a", 1, True, 2), Outbound(3, b"a", 2, False, 1)]
        await bench.reopen()


async def test_records_of_a_session_that_is_gone_change_nothing(bench: Bench):
    await bench.append(
        control.subscribed(b"c", [wish(b"a/+")]),
        control.Unsubscribed([b"a/+"]).frame(b"c"),
        control.CursorsCommitted({b"a/+": 1}).frame(b"c"),
        control.OutboundChanged(sent=[(1, b"a/+", 0, 2)]).frame(b"c"),
        control.InboundReleased([1]).frame(b"c"),
        control.SessionClosed(1, 60, 1).frame(b"c"),
        control.SessionEnded(1).frame(b"c"),
        message(b"a/b"),
    )
    assert await bench.engine.session(b"c") is None
    assert bench.commits[0].filter_offsets is None


async def test_single_subscriptions_can_be_asked_for(bench: Bench):
    wishes = [StoredSubscription(name, 1, False, False, 0, 3, 0, 0) for name in (b"a/+", b"b", b"c")]
    await bench.append(control.SessionOpened(1, 60, True).frame(b"c"), control.subscribed(b"c", wishes))
    for _ in range(2):
        state = await bench.engine.session(b"c")
        assert state is not None
        expected = {each.topic_filter: each for each in state.subscriptions if each.topic_filter != b"c"}
        assert await bench.engine.subscriptions(b"c", [b"a/+", b"b", b"x", b"b"]) == expected
        assert await bench.engine.subscriptions(b"other", [b"a/+"]) == {}
        await bench.reopen()


async def test_retained_messages_are_found_by_filter(bench: Bench):
    async def retained(topic_filter: bytes, after: bytes | None = None, limit: int = 10) -> list[tuple[bytes, bytes]]:
        found = await bench.engine.retained(topic_filter, after, limit)
        return [(row.topic, record.decode(row.frame, 0)[6]) for row in found]

    for topic, payload in ((b"a/b", b"1"), (b"a", b"2"), (b"a/b/c", b"3"), (b"b", b"4"), (b"a/b", b"5"), (b"$x", b"6")):
        await bench.append(message(topic, payload, FLAG_RETAIN))
    await bench.append(message(b"b", b"", FLAG_RETAIN), message(b"none", b"", FLAG_RETAIN), message(b"a", b"live"))
    for _ in range(2):
        assert await retained(b"a/b") == [(b"a/b", b"5")]
        assert await retained(b"b") == []
        assert await retained(b"#") == [(b"a", b"2"), (b"a/b", b"5"), (b"a/b/c", b"3")]
        assert await retained(b"a/#") == [(b"a", b"2"), (b"a/b", b"5"), (b"a/b/c", b"3")]
        assert await retained(b"a/+") == [(b"a/b", b"5")]
        assert await retained(b"+/+/c") == [(b"a/b/c", b"3")]
        assert await retained(b"#", None, 2) == [(b"a", b"2"), (b"a/b", b"5")]
        assert await retained(b"#", b"a/b", 2) == [(b"a/b/c", b"3")]
        assert await retained(b"a/b", b"a/b") == []
        await bench.reopen()


async def test_a_search_for_few_retained_values_among_many_lets_others_run(bench: Bench, monkeypatch):
    monkeypatch.setattr("store.queries._MAX_ROWS", 10)
    await bench.append(*[message(b"%03d/a" % i, b"x", FLAG_RETAIN) for i in range(100)])
    await bench.append(message(b"055/b", b"x", FLAG_RETAIN))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    for topic_filter, topics in ((b"+/nothing", []), (b"+/b", [b"055/b"]), (b"+/+", [b"000/a", b"001/a"])):
        turns = 0
        assert [row.topic for row in await bench.engine.retained(topic_filter, None, 2)] == topics
        assert len(topics) == 2 or turns >= 9
    task.cancel()


async def test_group_offsets_and_names(bench: Bench):
    await bench.append(control.GroupOffsetsCommitted(b"home", {0: 5, 3: 7}).frame(b"g"))
    await bench.append(control.GroupOffsetsCommitted(b"home", {3: 2}).frame(b"g"))
    await bench.append(*[message(b"home/%d" % i) for i in range(5)], message(b"/odd"), message(b"zoo"))
    for _ in range(2):
        assert await bench.engine.group_offsets(b"g", b"home") == {0: 5, 3: 2}
        assert await bench.engine.group_offsets(b"g", b"hom") == {}
        page = await bench.engine.children(b"", None, 9)
        assert [(child.name, child.is_topic) for child in page.children] == [
            (b"", False),
            (b"home", False),
            (b"zoo", True),
        ]
        assert [child.name for child in (await bench.engine.children(b"", b"", 1)).children] == [b"home"]
        names = await bench.engine.topics(b"home/", None, 2)
        assert names.names == [b"home/0", b"home/1"]
        names = await bench.engine.topics(b"home/", names.after, 3)
        assert (names.names, names.after) == ([b"home/2", b"home/3", b"home/4"], None)
        assert (await bench.engine.bounds(topic_queue(b"zoo"))).end == 1
        await bench.reopen()


def replay(topic_filter: bytes, place: int, qos: int = 1) -> bytes:
    return control.subscribed(b"c", [StoredSubscription(topic_filter, qos, False, False, 0, 0, 0, 0, place)])


async def replays(bench: Bench) -> dict[bytes, tuple[int, int]]:
    state = await bench.engine.session(b"c")
    assert state is not None
    return {s.topic_filter: (s.offset, s.replay) for s in state.subscriptions}


async def test_a_topic_s_replay_begins_at_an_offset_and_is_over_when_it_is_acknowledged(bench: Bench):
    await bench.append(
        message(b"a/b"), message(b"a/b"), message(b"a/b"), control.SessionOpened(1, 60, True).frame(b"c")
    )
    await bench.append(replay(b"a/b", 1), message(b"a/b"))
    assert await replays(bench) == {b"a/b": (1, 3)}
    await bench.append(control.CursorsCommitted({b"a/b": 2}).frame(b"c"), replay(b"a/b", 0), replay(b"a/b", -1, 2))
    await bench.reopen()
    assert await replays(bench) == {b"a/b": (2, 3)}
    await bench.append(control.CursorsCommitted({b"a/b": 3}).frame(b"c"))
    assert await replays(bench) == {b"a/b": (3, -1)}


async def test_a_wildcard_s_replay_is_a_place_in_the_log_beside_its_cursor(bench: Bench):
    await bench.append(message(b"a/b"), control.SessionOpened(1, 60, True).frame(b"c"))
    done = await bench.append(replay(b"a/+", 0), message(b"a/b"))
    start = done.positions[0]
    assert await replays(bench) == {b"a/+": (0, 0)}
    await bench.append(control.CursorsCommitted({b"$replay/a/+": start - 1}).frame(b"c"))
    await bench.append(control.CursorsCommitted({b"$replay/a/+": 5, b"a/+": 1, b"$replay/a/b": 7}).frame(b"c"))
    await bench.reopen()
    assert await replays(bench) == {b"a/+": (1, start - 1)}
    await bench.append(control.CursorsCommitted({b"$replay/a/+": start}).frame(b"c"))
    assert await replays(bench) == {b"a/+": (1, -1)}
    await bench.append(control.CursorsCommitted({b"$replay/a/+": start + 1}).frame(b"c"))
    assert await replays(bench) == {b"a/+": (1, -1)}


async def test_a_replay_from_now_or_without_a_cursor_is_no_replay(bench: Bench):
    await bench.append(message(b"a/b"), control.SessionOpened(1, 60, True).frame(b"c"))
    done = await bench.append(replay(b"a/b", 1), replay(b"a/c", 9), replay(b"a/+", 1 << 40), replay(b"b/+", 0, 0))
    assert done.error is None
    assert await replays(bench) == {b"a/b": (1, -1), b"a/c": (0, -1), b"a/+": (0, -1), b"b/+": (0, -1)}


async def test_a_message_to_an_inbox_makes_the_subscription_of_a_session(bench: Bench):
    inbox = b"$inbox/c"
    to_c, to_d = message(inbox, flags=FLAG_ADDRESSED), message(b"$inbox/d", flags=FLAG_ADDRESSED)
    await bench.append(to_c, control.SessionOpened(1, 60, True).frame(b"c"))
    done = await bench.append(to_d, to_c, message(b"a"), to_c)
    told = [(a.position, a.client_id, a.subscription) for commit in bench.commits for a in commit.addressed]
    cursor = StoredSubscription(inbox, 2, False, False, 0, 0, done.positions[1], 1)
    assert told[1:] == [
        (done.positions[0], b"d", None),
        (done.positions[1], b"c", cursor),
        (done.positions[3], b"c", cursor),
    ]
    assert told[0][1:] == (b"c", None)
    await bench.reopen()
    state = await bench.engine.session(b"c")
    assert state is not None
    assert state.subscriptions == [cursor]
    await bench.append(control.CursorsCommitted({inbox: 3}).frame(b"c"), to_c)
    state = await bench.engine.session(b"c")
    assert state is not None
    assert state.subscriptions[0].offset == 3


async def test_possibly_sent_messages_of_a_lost_session(bench: Bench):
    """By the reach of its connection, no further than its queues go, and until the cursor is past it."""
    await bench.append(control.SessionOpened(1, 60, True, reach=3).frame(b"c"))
    await bench.append(control.subscribed(b"c", [wish(b"a"), wish(b"b"), wish(b"b/#"), wish(b"none", 0)]))
    await bench.append(*[message(b"a") for _ in range(5)], message(b"b"), message(b"none"))
    await bench.append(control.CursorsCommitted({b"a": 1}).frame(b"c"))

    async def marks() -> list[tuple[int, int]]:
        found = await bench.engine.session(b"c")
        assert found is not None
        return [(s.offset, s.sent_before) for s in found.subscriptions]

    await bench.append(control.SessionLost(1, 60, 1000).frame(b"c"))
    assert await bench.engine.sessions_open(None, 9) == []
    for _ in range(2):
        assert await marks() == [(1, 4), (0, 1), (0, 1), (0, -1)]
        await bench.reopen()
    await bench.append(control.SessionOpened(2, 60, False, reach=1).frame(b"c"))
    await bench.append(
        control.CursorsCommitted({b"a": 3, b"b": 1}).frame(b"c"), control.subscribed(b"c", [wish(b"a", 2)])
    )
    assert await marks() == [(3, 4), (1, -1), (0, 1), (0, -1)]
    await bench.append(control.SessionLost(1, 60, 1000).frame(b"c"))  # of an old epoch
    await bench.append(control.SessionLost(2, 60, 1000).frame(b"c"), control.SessionLost(2, 60, 1000).frame(b"c"))
    assert await marks() == [(3, 4), (1, -1), (0, 1), (0, -1)]
    await bench.append(control.CursorsCommitted({b"a": 4, b"b/#": 1}).frame(b"c"))
    assert await marks() == [(4, -1), (1, -1), (1, -1), (0, -1)]


async def test_sessions_are_counted(bench: Bench):
    async def count() -> int:
        assert await bench.engine.sessions(None, 99) == sorted(await bench.engine.sessions(None, 99))
        assert len(await bench.engine.sessions(None, 99)) == bench.engine.stats().sessions
        return bench.engine.stats().sessions

    assert await count() == 0
    for client in (b"b", b"a", b"c"):
        await bench.append(
            control.SessionOpened(1, 60, True).frame(client), control.SessionOpened(2, 60, True).frame(client)
        )
    assert await count() == 3
    assert await bench.engine.sessions(b"a", 1) == [b"b"]
    await bench.reopen()
    assert await count() == 3
    await bench.append(control.SessionClosed(2, 0, 1).frame(b"a"), control.SessionEnded(2).frame(b"a"))
    await bench.append(control.SessionEnded(1).frame(b"b"), control.SessionEnded(1).frame(b"none"))
    assert await count() == 2
    await bench.append(control.SessionEnded(2).frame(b"b"))
    await bench.reopen()
    assert await count() == 1


async def test_possibly_sent_messages_of_a_lost_replay(bench: Bench):
    """Of a topic's, as much as any cursor; of a wildcard filter's, whatever is left of it."""
    await bench.append(
        message(b"a"), message(b"a"), message(b"a"), control.SessionOpened(1, 60, True, reach=1).frame(b"c")
    )
    await bench.append(replay(b"a", 0), replay(b"+", 0))

    async def marks() -> dict[bytes, int]:
        state = await bench.engine.session(b"c")
        assert state is not None
        return {s.topic_filter: s.sent_before for s in state.subscriptions}

    await bench.append(control.SessionLost(1, 60, 1000).frame(b"c"))
    for _ in range(2):
        assert await marks() == {b"a": 1, b"+": 0}
        await bench.reopen()
    await bench.append(control.CursorsCommitted({b"a": 1, b"+": 1, b"$replay/+": 9}).frame(b"c"))
    assert await marks() == {b"a": -1, b"+": 0}
    await bench.append(control.CursorsCommitted({b"$replay/+": 1 << 40}).frame(b"c"))
    assert await marks() == {b"a": -1, b"+": -1}


async def test_a_session_is_of_its_last_user(bench: Bench):
    opened = [
        control.SessionOpened(1, 60, True, user=b"alice" * (number % 2)).frame(b"%d" % number) for number in range(5)
    ]
    await bench.append(
        *opened, control.SessionClosed(1, 60, 1000).frame(b"1"), control.SessionOpened(2, 60, False).frame(b"2")
    )
    await bench.append(control.SessionOpened(2, 60, False, user=b"bob").frame(b"3"))
    for _ in range(2):
        owners = [state.user_name for c in b"01234" if (state := await bench.engine.session(bytes([c]))) is not None]
        assert owners == [b"", b"alice", b"", b"bob", b""]
        assert await bench.engine.sessions_of(b"alice", None) == ([b"1"], None)
        assert await bench.engine.sessions_of(b"alice", b"1") == ([], None)
        await bench.reopen()


async def test_the_sessions_of_a_user_are_looked_for_piece_by_piece(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("store.queries._MAX_ROWS", 2)
    await bench.append(*[control.SessionOpened(1, 60, True, user=b"u" * (n != 1)).frame(b"%d" % n) for n in range(4)])
    assert await bench.engine.sessions_of(b"u", None) == ([b"0"], b"1")
    assert await bench.engine.sessions_of(b"u", b"1") == ([b"2", b"3"], b"3")
    assert await bench.engine.sessions_of(b"u", b"3") == ([], None)
