"""Held messages as folds: in no queue before they are let go, in all that are wanted then, against a plain model."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from matcher.names import matches
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_HELD, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, REFERENCE, Kind
from store import control
from store.api import Commit, StoredSubscription, filter_queue, partition_of, partition_queue, topic_queue
from store.config import StoreConfig
from store.views.database.database import Database
from store.views.database.state import State
from store.views.fold import Views
from store.views.held import Earlier, Order
from store.views.queues.keys import key_digest
from tests.store.bare import BareStore

CONFIG = StoreConfig(segment_size=4096, generation_segments=1, checkpoint_keys=12, max_queue_ends=2)
FILTERS = [b"#", b"a/+"]
TOPICS = [b"a/b", b"a/c", b"b"]
MOVES = ("fire", "recall", "end", "ask", "revive")


def message(topic: bytes, flags: int = 0, due: int | None = None, payload: bytes = b"v", packet: int = 0) -> bytes:
    return record.frame(Kind.MESSAGE, flags, packet, topic, b"me", b"\x26\0\3key\0\1k", payload, due)


def subscribe(topic_filter: bytes) -> bytes:
    return control.subscribed(b"s", [StoredSubscription(topic_filter, 1, False, False, 0, 0, 0, 0)])


class Model:
    """Messages by what became of them. A position stands for its record."""

    def __init__(self) -> None:
        self.queues: dict[bytes, list[tuple[int, int]]] = {}  # (position, store time)
        self.retained: dict[bytes, int] = {}
        self.halves: dict[int, tuple[bytes, int, int, bytes]] = {}  # handle: topic, flags, due, payload
        self.delayed: dict[int, tuple[bytes, int, int, bytes]] = {}
        self.rounds: dict[int, int] = {}
        self.names: set[bytes] = set()
        self.keyed: dict[bytes, set[int]] = {}  # by parent: all have the same key
        self.wanted: set[bytes] = set()
        self.moved: list[int] = []

    def enter(self, topic: bytes, flags: int, payload: bytes, position: int, time: int) -> None:
        self.names.add(topic)
        self.keyed.setdefault(topic[:1], set()).add(position)
        partition = partition_of(record.tag_of(topic, b""), CONFIG.partitions)
        queues = [topic_queue(topic), partition_queue(topic.split(b"/")[0], partition)]
        queues += [filter_queue(name) for name in self.wanted if matches(name, topic)]
        for queue in queues:
            self.queues.setdefault(queue, []).append((position, time))
        if flags & FLAG_RETAIN:
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = position

    def take(self, frame: bytes, position: int, time: int) -> None:
        kind, flags, _, topic, _, _, payload = record.decode(frame, 0)
        if kind == Kind.SUBSCRIBED:
            self.wanted.add(control.Subscribed.parse(payload).subscriptions[0].filter)
        elif kind == Kind.UNSUBSCRIBED:
            self.wanted.discard(control.Unsubscribed.parse(payload).filters[0])
        elif kind == Kind.MESSAGE and flags & FLAG_REVIVED:
            handle = record.trailer_of(frame, 0)
            if self.delayed.pop(handle, None) or self.halves.pop(handle, None):
                self.enter(topic, flags, payload, position, time)
        elif kind == Kind.MESSAGE and flags & FLAG_HELD:
            due = record.trailer_of(frame, 0) if flags & FLAG_DELAYED else 0
            (self.halves if flags & FLAG_HALF else self.delayed)[position] = (topic, flags, due, payload)
        elif kind == Kind.MESSAGE:
            self.enter(topic, flags, payload, position, time)
        else:
            self.release(kind, payload, time)

    def release(self, kind: int, payload: bytes, time: int) -> None:
        if kind == Kind.TIMERS_FIRED:
            for handle in control.TimersFired.parse(payload).handles:
                self.go(self.delayed, handle, time)
        elif kind == Kind.TIMERS_RECALLED:
            for handle in control.TimersFired.parse(payload).handles:
                self.delayed.pop(handle, None)
        elif kind == Kind.TRANSACTIONS_ENDED:
            event = control.TransactionsEnded.parse(payload)
            for handle in event.committed:
                if handle in self.halves and self.halves[handle][1] & FLAG_DELAYED:
                    self.delayed[handle] = self.halves.pop(handle)
                self.go(self.halves, handle, time)
            for handle in event.rolled_back:
                self.halves.pop(handle, None)
        elif kind == Kind.TRANSACTIONS_CHECKED:
            for handle in control.TransactionsChecked.parse(payload).handles:
                self.rounds[handle] = self.rounds.get(handle, 0) + (handle in self.halves)

    def go(self, held: dict[int, tuple[bytes, int, int, bytes]], handle: int, time: int) -> None:
        if handle in held:
            topic, flags, _, payload = held.pop(handle)
            self.enter(topic, flags, payload, handle, time)
            self.moved.append(handle)

    def check(self, views: Views) -> None:
        for name, entries in self.queues.items():
            assert views.end(name) == len(entries)
            positions, _, times, _ = record.unpack_refs(views.references(name, 0, 1000))
            assert list(zip(positions, times, strict=True)) == entries
            assert times == sorted(times)
        for topic in TOPICS:
            assert views.end(topic_queue(topic)) == len(self.queues.get(topic_queue(topic), []))
        assert set(views.names.topics(b"", None, 99).names) == self.names
        for parent in (b"a", b"b"):
            rows, _ = views.keys.find(key_digest(parent, b"k"), -1, 999, 999)
            assert {position for position, _ in rows} == self.keyed.get(parent, set())
        rows, _ = views.retained.matching(b"#", None, 99, 99)
        assert {topic: record.unpack_refs(row[:REFERENCE])[0][0] for topic, row in rows} == self.retained
        found = [(m.due_ms, m.handle, m.topic) for m in views.held.timers(None, 999).messages]
        assert found == sorted((due, handle, topic) for handle, (topic, _, due, _) in self.delayed.items())
        halves = views.held.transactions(None, 999).messages
        assert {m.handle: m.rounds for m in halves} == {handle: self.rounds.get(handle, 0) for handle in self.halves}


actions = st.one_of(
    st.tuples(st.sampled_from(TOPICS), st.sampled_from([0, FLAG_RETAIN]), st.sampled_from([b"", b"v", b"w" * 200])),
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from([FLAG_DELAYED, FLAG_HALF, FLAG_HELD, FLAG_HALF | FLAG_RETAIN, FLAG_DELAYED | FLAG_RETAIN]),
        st.sampled_from([b"", b"v", b"w" * 200]),
    ),
    st.tuples(st.sampled_from(MOVES), st.lists(st.integers(0, 20), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["want", "unwant"]), st.sampled_from(FILTERS)),
)


def frame_of(action: tuple[object, ...], handles: list[int]) -> bytes:
    what, detail = action[0], action[1]
    if what == "want":
        return subscribe(detail)
    if what == "unwant":
        return control.Unsubscribed([detail]).frame(b"s")
    if what in MOVES:
        some = [handles[pick % len(handles)] if handles else pick for pick in detail]
        return {
            "fire": lambda: control.TimersFired(some).frame(),
            "recall": lambda: control.TimersRecalled(some[:1]).frame(),
            "end": lambda: control.TransactionsEnded(some[1:], some[:1]).frame(),
            "ask": lambda: control.TransactionsChecked(len(handles), list(dict.fromkeys(some))).frame(),
            "revive": lambda: message(TOPICS[0], FLAG_REVIVED | FLAG_RETAIN, some[0]),
        }[what]()
    return message(what, detail, len(action[2]) % 7 if detail & FLAG_DELAYED else None, action[2])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.lists(actions, min_size=1, max_size=8), st.sampled_from(["checkpoint", "crash"]))))
def test_any_history_of_held_messages_equals_the_model(tmp_path_factory, history):
    store = BareStore(tmp_path_factory.mktemp("held") / "store", CONFIG)
    model = Model()
    store.write([control.SessionOpened(1, 10, True).frame(b"s")])
    for step in history:
        if step == "checkpoint":
            store.views.checkpoint(store.writer.durable)
        elif step == "crash":
            store = store.crash()
        else:
            model.moved = []
            commits = store.write([lambda handles, action=action: frame_of(action, handles) for action in step])
            for commit in commits:
                for start in record.split(commit.data):
                    frame = commit.data[start : start + record.length_of(commit.data, start)]
                    model.take(frame, commit.position + start, commit.store_time)
            assert [moved.position for commit in commits for moved in commit.moved] == model.moved
        model.check(store.views)
    store.write([control.TransactionsEnded([], store.handles).frame(), control.TimersRecalled(store.handles).frame()])
    assert [key for key in store.dump() if key[:1] in b"hbdc"] == []
    store.close()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 9)), max_size=40), st.integers(1, 4))
def test_an_order_forgets_only_what_is_gone(tmp_path_factory, steps, limit):
    database = Database(tmp_path_factory.mktemp("order") / "views", 1 << 20)
    order = Order(State(database), b"d", Earlier())
    there: set[tuple[int, int]] = set()
    first: tuple[int, int] | None = None
    assert order.first() is None
    for is_added, time, handle in steps:
        sooner = is_added and (first is None or (time, handle) < first)
        order._earlier.is_set = False
        if is_added:
            order.add(time, handle)
            there.add((time, handle))
        else:
            order.remove(time, handle)
            there.discard((time, handle))
        assert order._earlier.is_set or not sooner
        due = sorted(name for name in there if name[0] <= 1)
        assert order.until(1, limit) == [handle for _, handle in due[:limit]]
        first = min(there, default=None)
        assert order.first() == (first[0] if first else None)
    assert order.until(-1, 10) == []
    assert order.until(2**80, 100) == [handle for _, handle in sorted(there)]
    database.close()


def told(commits: list[Commit]) -> list[tuple[int, bytes, int, int, tuple[tuple[bytes, int], ...]]]:
    return [
        (moved.position, moved.topic, moved.flags, moved.topic_offset, moved.filter_offsets)
        for commit in commits
        for moved in commit.moved
    ]


def test_a_commit_tells_which_messages_were_let_go_and_where_they_are(tmp_path: Path):
    store = BareStore(tmp_path / "store", CONFIG)
    store.write([control.SessionOpened(1, 10, True).frame(b"s"), message(b"a/b"), message(b"x")])
    arrived = store.write(
        [
            message(b"a/b", FLAG_DELAYED | FLAG_RETAIN | 1, 5),
            message(b"a/c"),
            message(b"x", FLAG_HALF | FLAG_TRACK_ID | 2, packet=9),
        ]
    )
    assert arrived[0].topics == [b"a/c"]
    assert arrived[0].moved == []
    first, second = store.handles
    assert store.views.messages == 3
    session = store.views.sessions.session(b"s")
    assert session is not None
    assert session.inbound == []
    store.write([subscribe(b"a/+")])
    go = store.write(
        [
            control.TimersFired([first]).frame(),
            message(b"a/b"),
            control.TransactionsEnded([second], []).frame(),
            message(b"x"),
        ]
    )
    assert told(go) == [(first, b"a/b", FLAG_RETAIN | 1, 1, ((b"a/+", 0),)), (second, b"x", FLAG_TRACK_ID | 2, 1, ())]
    assert go[0].topic_offsets == [2, 2]
    assert go[0].filter_offsets == [((b"a/+", 1),), ()]
    assert [moved.length for moved in go[0].moved] == [len(message(b"a/b", FLAG_DELAYED, 5)), len(message(b"x"))]
    assert store.views.messages == 7
    store.close()


def test_the_packet_id_of_a_held_message_counts_from_its_arrival_on(tmp_path: Path):
    store = BareStore(tmp_path / "store", CONFIG)
    store.write([control.SessionOpened(1, 10, True).frame(b"me")])
    store.write([message(b"t", FLAG_HELD | FLAG_TRACK_ID | 2, 5, packet=9)])
    session = store.views.sessions.session(b"me")
    assert session is not None
    assert session.inbound == [9]
    store.write([control.InboundReleased([9]).frame(b"me")])
    store.write([lambda handles: control.TransactionsEnded(handles, []).frame()])
    store.write([lambda handles: control.TimersFired(handles).frame()])
    session = store.views.sessions.session(b"me")
    assert session is not None
    assert session.inbound == []
    store.close()


def test_pages_of_held_messages(tmp_path: Path):
    store = BareStore(tmp_path / "store", CONFIG)
    store.write([message(b"t/%d" % i, FLAG_DELAYED, 100 - i) for i in range(5)])
    store.write([message(b"h/%d" % i, FLAG_HALF) for i in range(6)])
    store.write([lambda handles: control.TransactionsChecked(900, handles[5:8]).frame()])
    for limit in (1, 2, 3, 5, 6, 100):
        for ask, expected in (
            (store.views.held.timers, [b"t/4", b"t/3", b"t/2", b"t/1", b"t/0"]),
            (store.views.held.transactions, [b"h/3", b"h/4", b"h/5", b"h/0", b"h/1", b"h/2"]),
        ):
            found: list[bytes] = []
            after: bytes | None = None
            while True:
                page = ask(after, limit)
                found += [held.topic for held in page.messages]
                after = page.after
                if after is None:
                    break
                assert len(page.messages) == limit
            assert found == expected
    store.close()


def test_a_dead_letter_queue_takes_references_one_by_one(tmp_path: Path):
    store = BareStore(tmp_path / "store", CONFIG)
    positions = [commit.position for commit in [*store.write([message(b"a")]), *store.write([message(b"b")])]]
    refs = [record.pack_refs([position], [60], [5], [1]) for position in positions]
    assert [store.views._dispatcher.enter_reference(b"dgroup", ref) for ref in refs] == [0, 1]
    assert store.views.references(b"dgroup", 0, 9) == b"".join(refs)
    store.views.checkpoint(store.writer.durable)
    assert store.views.references(b"dgroup", 1, 9) == refs[1]
    assert store.views._dispatcher.enter_reference(b"dgroup", refs[0]) == 2
    assert store.views.end(b"dgroup") == 3
    store.close()
