"""The state of groups: the fold of the records equals a dictionary, whenever rows were written."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from struct import iter_unpack

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import record
from record.layout import Kind
from store import control
from store.api import DeadLetterReason, dead_letter_queue, filter_queue, partition_queue, topic_queue
from store.config import StoreConfig
from store.views.groups.leases import QueueLeases
from tests.store.bare import BareStore, made
from tests.store.group_model import GroupModel, Place

P0, P1 = partition_queue(b"a", 0), partition_queue(b"a", 1)
QUEUES = [P0, P1, topic_queue(b"a/b"), filter_queue(b"a/+"), dead_letter_queue(b"g")]
GROUPS = [b"g", b"gg"]
CONFIG = StoreConfig(segment_size=4096, generation_segments=1, checkpoint_keys=12, partitions=2)

groups = st.sampled_from([b"g", b"g", b"g", b"gg"])  # mostly the same, so that records meet
queues = st.sampled_from([P0, P0, P0, P0, P0, *QUEUES])
offsets = st.one_of(st.integers(0, 12), st.integers(240, 270), st.integers(0, 800))
counts = st.one_of(st.integers(1, 5), st.integers(1, 300))
times = st.integers(1, 6)
runs = st.lists(st.tuples(offsets, st.just(0) | counts), min_size=1, max_size=4)
by_queue = partial(st.dictionaries, queues, max_size=3)
changes = st.one_of(
    st.builds(made(control.Popped), groups, times, by_queue(values=runs)),
    st.builds(
        made(control.Popped),
        groups,
        times,
        by_queue(values=st.lists(st.tuples(offsets, counts | counts.map(lambda count: -count)), max_size=4)),
    ),
    st.builds(
        made(control.Settled),
        groups,
        by_queue(values=runs),
        by_queue(values=st.lists(st.tuples(offsets, counts, times | st.just(-5)), max_size=3)),
    ),
    st.builds(
        made(control.DeadLettered),
        groups,
        queues,
        st.lists(offsets, max_size=5),
        st.sampled_from(DeadLetterReason),
        st.sampled_from([b"", b"KeyError: 'name'"]),
    ),
    st.builds(made(control.GroupReset), groups, st.dictionaries(queues, offsets, max_size=2)),
    st.builds(made(control.GroupRemoved), groups),
    st.builds(lambda group, at: control.GroupOffsetsCommitted(b"a", {0: at}).frame(group), groups, offsets),
    st.just(record.frame(Kind.MESSAGE, 0, 0, b"a/b", b"c", b"", b"x")),
)
histories = st.lists(
    st.one_of(st.lists(changes, min_size=1, max_size=6), st.sampled_from(["checkpoint", "flush", "crash"])), max_size=25
)


def entries(place: QueueLeases) -> dict[int, tuple[int, int]]:
    return {
        number * 256 + i: (block.deliveries[i], block.at[i])
        for number, block in place.blocks.items()
        for i in range(256)
        if block.deliveries[i]
    }


def check(store: BareStore, model: GroupModel) -> None:
    pops = store.views.pops
    assert pops.page(None, 10) == sorted(model.places)
    assert pops.groups() == len(model.places)
    for group in GROUPS:
        places = model.places.get(group, {})
        listed = [(queue, place.floor, place.next, len(place.entries)) for queue, place in sorted(places.items())]
        assert pops.queue_states(group) == listed
        assert pops.queues_of(group) == len(places)
        for queue in QUEUES:
            found = pops.find(group, queue)
            if queue not in places:
                assert found is None
                continue
            assert found is not None
            assert entries(found) == places[queue].entries
            for offset in entries(found):
                assert found.entry_of(offset) == (places[queue].entries[offset][0], *places[queue].times[offset])
            assert (found.floor, found.next, found.unfinished) == listed[sorted(places).index(queue)][1:]
            assert all(block.count for block in found.blocks.values())
            check_due(found, places[queue])


def check_due(found: QueueLeases, place: Place) -> None:
    """Everything comes out of `due` when its time has come, and nothing else."""
    came: list[tuple[int, int, int]] = []
    while (at := found.next_due()) is not None:
        taken, runs = found.pop_due()
        assert taken == at
        came += [(at, offset, deliveries) for first, end, deliveries in runs for offset in range(first, end)]
    assert [at for at, _, _ in came] == sorted(at for at, _, _ in came)
    assert sorted(set(came)) == sorted((at, offset, count) for offset, (count, at) in place.entries.items())
    for at, offset, _ in came:
        found.expect(at, offset, offset + 1)


def split(frames: Sequence[bytes], sizes: list[int]) -> list[list[bytes]]:
    pieces: list[list[bytes]] = []
    rest = list(frames)
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    return [piece for piece in [*pieces, rest] if piece]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories, st.lists(st.integers(1, 9), max_size=20), st.sampled_from([1, 3, 1000]), st.booleans())
def test_any_history_is_what_the_dictionary_says(tmp_path_factory, history, sizes, limit, eager):
    path = tmp_path_factory.mktemp("pops")
    config = replace(CONFIG, max_group_objects=limit)
    store, model = BareStore(path / "one", config), GroupModel()
    everything: list[bytes] = []
    for step in history:
        if step == "checkpoint":
            store.views.checkpoint(store.writer.durable)
        elif step == "flush":
            store.database.flush()
        elif step == "crash":
            store = store.crash()
        else:
            store.write(step)
            everything += step
            for frame in step:
                fold(model, frame, 1000 * store.seconds)
            if eager or store.views.is_full:
                store.views.checkpoint(store.writer.durable)
                assert store.views.pops.changed == 0
                assert store.views.pops.size <= limit
        check(store, model)
    other = BareStore(path / "other", CONFIG)
    for piece in split(everything, sizes):
        other.write(piece)
    ours, theirs = store.dump(), other.dump()
    assert {key: untimed(key, ours[key]) for key in ours if key[:1] in b"jnl"} == {
        key: untimed(key, theirs[key]) for key in theirs if key[:1] in b"jnl"
    }
    check(store, model)
    store.close()
    other.close()


def untimed(key: bytes, row: bytes) -> object:
    """What a row says without the times of leases, which are those of the writes."""
    if key[:1] != b"l":
        return row
    runs = iter_unpack(">BBBQQQ", row)
    return [(first + i, deliveries, at) for first, last, deliveries, at, _, _ in runs for i in range(last + 1)]


def fold(model: GroupModel, frame: bytes, time: int) -> None:
    kind, _, _, group, _, _, payload = record.decode(frame, 0)
    if kind == Kind.GROUP_OFFSETS_COMMITTED:
        committed = control.GroupOffsetsCommitted.parse(payload)
        for partition, offset in committed.offsets.items():
            model.committed[group, partition_queue(committed.parent, partition)] = offset
    elif kind != Kind.MESSAGE:
        model.fold(frame, time)


def test_dead_letters_enter_in_order_and_once(tmp_path):
    store = BareStore(tmp_path / "store", CONFIG)
    queue = topic_queue(b"a/b")
    messages = [record.frame(Kind.MESSAGE, 0, 0, b"a/b", b"c", b"", b"%d" % i) for i in range(5)]
    store.write([*messages, control.Popped(1, {queue: [(0, 9)]}).frame(b"g")])
    (commit,) = store.write([control.DeadLettered(queue, [3, 1, 3, 8]).frame(b"g"), messages[0]])
    assert commit.dead_letters == [b"g"]
    assert (
        store.write([control.DeadLettered(queue, [3, 1]).frame(b"g"), control.DeadLettered(queue, [0]).frame(b"x")])[
            0
        ].dead_letters
        == []
    )
    for _ in range(2):
        positions, lengths, _, tags = record.unpack_refs(store.views.references(queue, 0, 5))
        expected = [positions[3], positions[1]], [lengths[3], lengths[1]], [2000] * 2, [tags[3], tags[1]]
        assert record.unpack_refs(store.views.references(dead_letter_queue(b"g"), 0, 10)) == expected
        assert store.views.end(dead_letter_queue(b"g")) == 2
        store = store.crash()  # nothing was checkpointed: all of it is folded again, in one batch
    store.close()


def test_committed_offsets_are_the_start_of_a_group_until_it_is_removed(tmp_path):
    store = BareStore(tmp_path / "store", CONFIG)
    store.write(
        [control.GroupOffsetsCommitted(b"a", {0: 5, 1: 8}).frame(b"g"), control.Popped(1, {P0: [(2, 4)]}).frame(b"g")]
    )
    store.write(
        [
            control.GroupOffsetsCommitted(b"b", {0: 7}).frame(b"g"),
            control.GroupOffsetsCommitted(b"a", {0: 3}).frame(b"g"),
        ]
    )
    assert store.views.pops.queue_states(b"g") == [(P0, 5, 6, 1)]
    store.write([control.GroupRemoved().frame(b"g"), control.Popped(1, {P1: [(2, 1)]}).frame(b"g")])
    assert store.views.pops.queue_states(b"g") == [(P1, 2, 3, 1)]
    assert store.views.groups.offsets(b"g", b"a") == store.views.groups.offsets(b"g", b"b") == {}
    store.close()


def test_the_count_of_deliveries_stops_at_254(tmp_path):
    store = BareStore(tmp_path / "store", CONFIG)
    for until in range(1, 300):
        store.write([control.Popped(until, {P0: [(5, 2)]}).frame(b"g")])
    place = store.views.pops.find(b"g", P0)
    assert place is not None
    assert entries(place) == {5: (254, 299), 6: (254, 299)}
    assert len(place.due) < 300
    store.close()


def test_due_rows_do_not_pile_up():
    place = QueueLeases(b"g", P0, 0)
    for first in range(0, 32 * 5_000, 32):
        place.popped([(first, 32)], 1_000 + first, 1_000)
        place.finish(first, first + 31)
        place.finish(first - 320 + 31, first - 320 + 32)
    assert (place.unfinished, len(place.blocks)) == (10, 2)
    assert len(place.due) < 600
    assert place.next_due() == 1_000 + 32 * 4_990


def test_a_group_goes_without_a_look_at_the_others(tmp_path):
    """Removing a group leaves the rows of others that wait for the checkpoint."""
    config = replace(CONFIG, segment_size=1 << 20, checkpoint_keys=100_000, max_group_objects=10_000)
    store = BareStore(tmp_path / "store", config)
    many = [b"g%d" % number for number in range(200)]
    store.write([control.Popped(1, {P0: [(0, 9)]}).frame(group) for group in many])
    pops = store.views.pops
    assert (pops.changed, pops.size) == (400, 400)
    store.write([control.GroupRemoved().frame(many[7]), control.GroupRemoved().frame(b"none")])
    assert (pops.changed, pops.size) == (398, 398)
    assert pops.find(many[7], P0) is None
    assert pops.queue_states(many[8]) == [(P0, 0, 9, 9)]
    assert (pops.changed, pops.size) == (396, 398)
    pops.checkpoint()
    assert (pops.changed, pops.size) == (0, 398)
    store.close()


def test_one_record_changes_more_queues_than_fit_in_memory(tmp_path):
    store = BareStore(tmp_path / "store", replace(CONFIG, max_group_objects=1))
    popped, settled = made(control.Popped), made(control.Settled)
    store.write([popped(b"g", 1, {P0: [(0, 3)]}), popped(b"g", 1, {P1: [(0, 3)]})])
    store.views.checkpoint(store.views.position)  # nothing has to stay in memory
    store.write([popped(b"g", 2, {P0: [(3, 1)], P1: [(3, 1)]})])
    store.views.checkpoint(store.views.position)
    store.write([settled(b"g", {P0: [(0, 1)], P1: [(0, 2)]})])
    assert store.views.pops.queue_states(b"g") == [(P0, 1, 4, 3), (P1, 2, 4, 2)]
    store.close()
