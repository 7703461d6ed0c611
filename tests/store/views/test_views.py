"""The views are a pure fold: whatever happened before, replay leads to the state of a run without a crash."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from matcher.names import matches
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_HELD, FLAG_RETAIN, FLAG_REVIVED, FLAG_TRACK_ID, Kind
from store import control
from store.api import StoredSubscription, dead_letter_queue, filter_queue, partition_of, partition_queue, topic_queue
from store.config import StoreConfig
from store.views.database.database import Database
from tests.store.bare import BareStore, made

CONFIG = StoreConfig(segment_size=4096, generation_segments=1, checkpoint_keys=12, max_queue_ends=2)


def keyed(key: bytes) -> bytes:
    """The user property by which a message is found."""
    return b"\x26\0\3key\0%c" % len(key) + key


clients = st.sampled_from([b"c1", b"c2", b"longer client"])
filters = st.sampled_from([b"a/+", b"#", b"a/b", b"b/#", b"+"])
topics = st.sampled_from([b"a/b", b"a/c", b"b", b"b/x/y", b"c", b"/"])
epochs = st.integers(1, 3)
numbers = st.integers(0, 5)
messages = st.builds(
    lambda topic, payload, flags, client, number, properties: record.frame(
        Kind.MESSAGE, flags, number, topic, client, properties, payload
    ),
    topics,
    st.sampled_from([b"", b"v", b"w" * 300]),
    st.sampled_from([0, 1, FLAG_RETAIN, FLAG_TRACK_ID | 2]),
    clients,
    numbers,
    st.sampled_from([b"", b"\x01\x01", keyed(b"k"), keyed(b"other") + keyed(b"k")]),
)
controls = st.one_of(
    st.builds(made(control.SessionOpened), clients, epochs, st.sampled_from([0, 10, 0xFFFFFFFF]), st.booleans()),
    st.builds(made(control.SessionClosed), clients, epochs, st.sampled_from([0, 10, 20, 0xFFFFFFFF]), numbers),
    st.builds(made(control.SessionEnded), clients, epochs),
    st.builds(
        lambda client, names, qos: control.subscribed(
            client, [StoredSubscription(name, qos, True, False, 1, 7, 0, 0) for name in names]
        ),
        clients,
        st.lists(filters, max_size=3),
        st.integers(0, 2),
    ),
    st.builds(made(control.Unsubscribed), clients, st.lists(filters, max_size=2)),
    st.builds(made(control.CursorsCommitted), clients, st.dictionaries(filters, numbers, max_size=2)),
    st.builds(made(control.InboundReleased), clients, st.lists(numbers, max_size=3)),
    st.builds(
        made(control.OutboundChanged),
        clients,
        st.lists(st.tuples(numbers, filters, numbers, st.integers(1, 2)), max_size=3),
        st.lists(numbers, max_size=3),
        st.lists(numbers, max_size=3),
    ),
    st.builds(
        made(control.GroupOffsetsCommitted), st.sampled_from([b"g", b"h"]), topics, st.dictionaries(numbers, numbers)
    ),
)
picks = st.lists(st.integers(0, 9), max_size=4)  # of the handles there are so far


def picked(handles: list[int], picks: list[int]) -> list[int]:
    return [handles[pick % len(handles)] if handles else pick for pick in picks]


def revived(topic: bytes, handle: int) -> bytes:
    flags = FLAG_REVIVED | FLAG_RETAIN
    return record.frame(Kind.MESSAGE, flags, 0, topic, b"", keyed(b"k"), b"again", handle)


held = st.builds(
    lambda flags, topic, payload, client, due, properties: record.frame(
        Kind.MESSAGE, flags, 3, topic, client, properties, payload, due if flags & FLAG_DELAYED else None
    ),
    st.sampled_from([FLAG_DELAYED, FLAG_HALF, FLAG_HELD | FLAG_RETAIN, FLAG_HALF | FLAG_TRACK_ID, FLAG_DELAYED | 2]),
    topics,
    st.sampled_from([b"", b"v", b"w" * 300]),
    clients,
    st.sampled_from([0, 7, 2**64 - 1]),
    st.sampled_from([b"", keyed(b"k"), keyed(b"other") + keyed(b"k")]),
)
# What tells of handles is made when there are some.
releases = st.one_of(
    st.builds(lambda some: lambda handles: control.TimersFired(picked(handles, some)).frame(), picks),
    st.builds(lambda some: lambda handles: control.TimersRecalled(picked(handles, some)).frame(), picks),
    st.builds(
        lambda some, others: (
            lambda handles: control.TransactionsEnded(picked(handles, some), picked(handles, others)).frame()
        ),
        picks,
        picks,
    ),
    st.builds(
        lambda at, some: lambda handles: control.TransactionsChecked(at, picked(handles, some)).frame(), numbers, picks
    ),
    st.builds(
        lambda topic, pick: lambda handles: revived(topic, picked(handles, [pick])[0]),
        topics,
        numbers,
    ),
)
groups = st.sampled_from([b"g", b"h"])
queues = st.sampled_from(
    [topic_queue(b"a/b"), partition_queue(b"a", 0), partition_queue(b"a", 3), dead_letter_queue(b"g")]
)
runs = st.lists(st.tuples(numbers, st.integers(1, 3)), min_size=1, max_size=2)
pops = st.one_of(
    st.builds(made(control.Popped), groups, numbers, st.dictionaries(queues, runs, max_size=2)),
    st.builds(
        made(control.Settled),
        groups,
        st.dictionaries(queues, runs, max_size=2),
        st.dictionaries(queues, st.lists(st.tuples(numbers, numbers, numbers), max_size=1), max_size=2),
    ),
    st.builds(made(control.DeadLettered), groups, queues, st.lists(numbers, max_size=2)),
    st.builds(made(control.GroupReset), groups, st.dictionaries(queues, numbers, max_size=2)),
    st.builds(made(control.GroupRemoved), groups),
)
# What happens to the store: a batch of records, or a moment of its housekeeping, or a crash.
histories = st.lists(
    st.one_of(
        st.lists(st.one_of(messages, messages, controls, held, releases, pops), min_size=1, max_size=8),
        st.sampled_from(["checkpoint", "flush", "crash"]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories)
def test_any_history_cut_anywhere_folds_to_the_same_state(tmp_path_factory, history):
    path = tmp_path_factory.mktemp("views")
    steady, crashing = BareStore(path / "steady", CONFIG), BareStore(path / "crashing", CONFIG)
    opened = [control.SessionOpened(1, 10, False).frame(client) for client in (b"c1", b"c2")]
    for step in [opened, *history]:
        if step == "checkpoint":
            crashing.views.checkpoint(crashing.writer.durable)
        elif step == "flush":
            crashing.database.flush()
        elif step == "crash":
            crashing = crashing.crash()
        else:
            first, second = steady.write(step), crashing.write(step)
            for a, b in zip(first, second, strict=True):
                assert (a.starts, a.topic_offsets, a.topics) == (b.starts, b.topic_offsets, b.topics)
                assert (a.filter_offsets, a.moved, a.dead_letters) == (b.filter_offsets, b.moved, b.dead_letters)
            if crashing.views.is_full:
                crashing.views.checkpoint(crashing.writer.durable)
    crashing = crashing.crash()
    for client in (b"c1", b"c2", b"longer client"):
        assert steady.views.sessions.session(client) == crashing.views.sessions.session(client)
    assert steady.views.sessions.expired(1 << 60, 10) == crashing.views.sessions.expired(1 << 60, 10)
    assert steady.views.sessions.open(None, 10) == crashing.views.sessions.open(None, 10)
    assert steady.views.held.timers(None, 99) == crashing.views.held.timers(None, 99)
    assert steady.views.held.transactions(None, 99) == crashing.views.held.transactions(None, 99)
    assert steady.dump() == crashing.dump()
    steady.close()
    crashing.close()


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.lists(messages, min_size=1, max_size=9), st.just("checkpoint")), max_size=25))
def test_queues_hold_every_message_once_and_in_order(tmp_path_factory, history):
    """Also with two queue tails in memory, across checkpoints and generations."""
    store = BareStore(tmp_path_factory.mktemp("views") / "store", CONFIG)
    store.write(
        [
            control.SessionOpened(1, 10, True).frame(b"s"),
            control.subscribed(
                b"s", [StoredSubscription(name, 1, False, False, 0, 0, 0, 0) for name in (b"a/+", b"#")]
            ),
        ]
    )
    expected: dict[bytes, list[int]] = {}
    for step in history:
        if step == "checkpoint":
            store.views.checkpoint(store.writer.durable)
            continue
        for commit in store.write(step):
            assert commit.filter_offsets is not None
            for i, topic in enumerate(commit.topics):
                position = commit.position + commit.starts[i]
                own = expected.setdefault(topic_queue(topic), [])
                assert commit.topic_offsets[i] == len(own)
                own.append(position)
                entered = [name for name in (b"#", b"a/+") if matches(name, topic)]
                assert sorted(name for name, _ in commit.filter_offsets[i]) == entered
                for name, offset in commit.filter_offsets[i]:
                    queue = expected.setdefault(filter_queue(name), [])
                    assert offset == len(queue)
                    queue.append(position)
                parent = topic.split(b"/")[0]
                name = partition_queue(parent, partition_of(record.tag_of(topic, b""), CONFIG.partitions))
                expected.setdefault(name, []).append(position)
    for queue, positions in expected.items():
        assert store.views.end(queue) == len(positions)
        for limit in (1, 3, 1000):
            found: list[int] = []
            while len(found) < len(positions):
                found += record.unpack_refs(store.views.references(queue, len(found), limit))[0]
            assert found == positions
        for offset in range(len(positions)):
            assert record.unpack_refs(store.views.references(queue, offset, 1))[0] == positions[offset : offset + 1]
    store.close()


def test_views_that_exist_are_opened_with_the_options_of_today(tmp_path):
    for size in (16 << 20, 48 << 20):
        database = Database(tmp_path / "views", size)
        assert database._db.property_int_value("rocksdb.block-cache-capacity") == size
        database.close()
