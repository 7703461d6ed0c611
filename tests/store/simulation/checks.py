"""What must be true of an open store: it says what the model says, however retention and its own work go on meanwhile.

All checks raise AssertionError.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from itertools import pairwise
from operator import attrgetter
from random import Random
from typing import TypeVar

import record
from matcher.names import levels, matches, parent_of
from record.layout import FLAG_HELD
from store.api import (
    BucketChanges,
    Child,
    Commit,
    EntryPage,
    GroupPause,
    GroupQueueState,
    GroupState,
    HeldMessage,
    UserState,
    dead_letter_queue,
    filter_queue,
    partition_queue,
    topic_queue,
)
from store.engine import Engine
from store.errors import OffsetOutOfRange
from store.queries import Queries
from store.views.queues.begins import Floors
from tests.store.simulation.model import Entered, Entry, Model
from tests.store.simulation.records import BUCKETS, CLIENTS, ENTRIES, FILTERS, GROUPS, INBOXES, PARENTS, TOPICS, USERS

Answer = TypeVar("Answer")

AT_ONCE = 700  # bytes of the log read at once
TRIES = 20  # of a check while which the log grew
MANY = 8  # queues of a group of like ones that are looked at


def log_begin(engine: Queries) -> int:
    return engine._views.begin


def there(engine: Queries, frames: list[bytes]) -> list[bytes]:
    """Those of the records that retention has not removed in the middle of the log."""
    return [frame for frame in frames if not engine._views.gone.covers(record.position_of(frame, 0))]


async def read_log(engine: Queries) -> list[bytes]:
    """All sealed records there are, each checked to be where it says it is, behind the one before."""
    size = engine._reader._segments.size
    frames: list[bytes] = []
    position = behind = log_begin(engine)
    time = 0
    while position < engine._views.position:
        chunk = await _attempt(engine.read(position, AT_ONCE))
        if isinstance(chunk, OffsetOutOfRange):
            assert position < chunk.begin == log_begin(engine), "a record is denied that is there"
            frames, position, behind = [], chunk.begin, chunk.begin
            continue
        starts = [*record.split(chunk.data), len(chunk.data)]
        for start, end in pairwise(starts):
            at = record.position_of(chunk.data, start)
            assert at == chunk.position + start
            is_padding = at % size == 0 and at - size < behind < at
            assert at == behind or is_padding or engine._views.gone.behind(behind) == at, "a gap in the log"
            assert record.store_time_of(chunk.data, start) >= time, "time runs backwards"
            time = record.store_time_of(chunk.data, start)
            behind = at + end - start
            frames.append(chunk.data[start:end])
        position = chunk.next_position
    assert position == engine._views.position
    return frames


def check_commits(commits: list[Commit], model: Model) -> None:
    """Check that listeners were told the right queues of the messages."""
    expected: defaultdict[int, list[Entered]] = defaultdict(list)
    for entered in model.entered:
        expected[entered.cause].append(entered)
    for commit in commits:
        filters = commit.filter_offsets or [()] * len(commit.starts)
        columns = zip(commit.starts, commit.topics, commit.flags, commit.topic_offsets, filters, strict=True)
        told = [
            Entered(commit.position + start, commit.position + start, topic, flags, offset, tuple(sorted(pairs)))
            for start, topic, flags, offset, pairs in columns
        ]
        starts = [commit.position + start for start in record.split(commit.data)]
        wanted = [entered for start in starts for entered in expected[start]]
        assert told == [entered for entered in wanted if entered.cause == entered.position], "a listener was told else"
        moved = [
            (moved.position, moved.topic, moved.flags, moved.topic_offset, tuple(sorted(moved.filter_offsets)))
            for moved in commit.moved
        ]
        wanted_moved = [tuple(entered)[1:] for entered in wanted if entered.cause != entered.position]
        assert moved == wanted_moved, f"moved {moved}, wanted {wanted_moved}"
        causes = range(commit.position, commit.end)
        addressed = [told for cause, told in model.addressed if cause in causes]
        assert commit.addressed == addressed, f"addressed {commit.addressed}, wanted {addressed}"
        grown = list(dict.fromkeys(group for cause, group in model.dead_letters if cause in causes))
        assert commit.dead_letters == grown, "dead letters"
        again = {group for cause, group in model.again if cause in causes}
        perhaps = {group for cause, group in model.settled if cause in causes}
        assert again <= set(commit.again) <= again | perhaps, "come again"
        assert len(set(commit.again)) == len(commit.again), "come again twice"
        assert commit.users == [name for cause, name in model.access.changed_users if cause in causes], "users"
        assert commit.bans == [name for cause, name in model.access.changed_bans if cause in causes], "bans"
        rules = [name for cause, name in model.event_rules.changed if cause in causes]
        assert commit.event_rules == rules, "event rules"
        assert commit.rules == [name for cause, name in model.access.changed_rules if cause in causes], "rules"


async def check_state(engine: Engine, model: Model, rng: Random) -> bool:
    """The views answer as the model does. False when the log grew behind what the model knows meanwhile."""
    end = engine.stats().log_end
    try:
        await check_all(engine, model, rng)
        await _check_groups(engine, model, rng)
    except AssertionError:
        if engine.stats().log_end == end:
            raise
    return engine.stats().log_end == end


async def check_all(engine: Queries, model: Model, rng: Random) -> None:
    """The views of a store, or of a moment of it, answer as the model does."""
    for client in CLIENTS:
        assert await engine.session(client) == model.sessions.state(client), f"session {client!r}"
    assert await engine.sessions_open(None, 100) == model.sessions.open()
    for now in (0, 15_000, 1 << 60):
        assert await engine.sessions_expired(now, 100) == model.sessions.expired(now)
    await _check_access(engine, model)
    await _check_buckets(engine, model, rng)
    rows = await engine.producers(None, 9)
    known = [(row.producer, (row.sequence, row.position, row.records, row.digest)) for row in rows]
    assert known == sorted(model.producers.items()), "producers"
    held = sorted((group, sorted(nodes)) for group, nodes in model.shares.held.items())
    assert await engine.transient_shares(None, 100) == held
    assert engine._views.gateways.page(None, 100) == sorted(model.gateways)
    assert await engine.sessions(None, 100) == sorted(model.sessions.by_client)
    for user in USERS:
        of_user = sorted(name for name, session in model.sessions.by_client.items() if session.user == user)
        assert await engine.sessions_of(user, None) == (of_user, None)
        assert await engine.session_count_of(user) == (len(of_user) if user else 0)
    assert engine._views.sessions.count == len(model.sessions.by_client), "the number of sessions"
    await _check_wills(engine, model)
    await _check_names(engine, model, rng)
    await _check_retained(engine, model, rng)
    await _check_keys(engine, model, rng)
    await _check_held(engine, model, rng)
    for group in GROUPS:
        for parent in (b"a", b"b", b""):
            assert await engine.group_offsets(group, parent) == model.committed.get((group, parent), {})
    others = sorted(model.topics.difference(TOPICS))
    names = {topic_queue(topic) for topic in (*TOPICS, *rng.sample(others, min(MANY, len(others))))}
    names |= {filter_queue(name) for name in FILTERS}
    names |= {dead_letter_queue(group) for group in GROUPS}
    for parent in PARENTS:
        assert engine.partition_count(parent) == model.count(parent), f"partitions of {parent!r}"
        names |= {partition_queue(parent, number) for number in range(model.count(parent))}
    for name in sorted(names):
        await _check_queue(engine, model, name, rng)


async def _check_wills(engine: Queries, model: Model) -> None:
    wills = model.sessions.wills.all()
    assert await engine.wills(None, 100) == wills, "wills"
    assert await engine.wills(CLIENTS[0], 1) == [will for will in wills if will.client_id > CLIENTS[0]][:1]
    assert await engine.wills_waiting(100) == model.sessions.wills.waiting()
    for client in CLIENTS:
        own = [will for will in wills if will.client_id == client]
        assert await engine.will(client) == (own[0] if own else None)


async def _check_held(engine: Queries, model: Model, rng: Random) -> None:
    timers = [(held.due, handle) for handle, held in model.held.messages.items() if not held.is_half]
    halves = [(h.rounds > 0, h.check, handle) for handle, h in model.held.messages.items() if h.is_half]
    for ask, wanted in ((engine.timers, sorted(timers)), (engine.transactions, sorted(halves))):
        found: list[HeldMessage] = []
        after: bytes | None = None
        while True:
            page = await ask(after, rng.choice((1, 2, 100)))
            found += page.messages
            after = page.after
            if after is None:
                break
        assert [message.handle for message in found] == [row[-1] for row in wanted], "held messages"
        for message in found:
            held = model.held.messages[message.handle]
            _, _, _, topic, publisher, _, _ = record.decode(held.frame, 0)
            own = HeldMessage(message.handle, topic, publisher, held.due, held.rounds)
            assert message == own, f"of a held message {message} is told, it is {own}"


async def _check_groups(engine: Engine, model: Model, rng: Random) -> None:
    found: list[GroupState] = []
    limit = rng.choice((1, 100))
    while True:
        page = await engine.groups(found[-1].group if found else None, limit)
        found += page
        if len(page) < limit:
            break
    wanted: list[GroupState] = []
    for group in sorted({group for group, _ in model.groups.places}):
        queues: list[GroupQueueState] = []
        for queue in sorted(queue for own, queue in model.groups.places if own == group):
            place = model.groups.places[group, queue]
            ahead = max(model.end(queue) - max(place.next, _first(engine, model, queue)), 0)
            unfinished = len(place.entries)
            queues.append(GroupQueueState(queue, place.floor, place.next, unfinished, unfinished + ahead))
        wanted.append(GroupState(group, queues))
    assert found == wanted, f"groups are {found} and not {wanted}"
    for group in {*GROUPS, *(state.group for state in wanted)}:
        paused = model.groups.pauses.get(group)
        assert await engine.group_pause(group) == (None if paused is None else GroupPause(*paused)), "pauses"


async def _check_buckets(engine: Queries, model: Model, rng: Random) -> None:
    for token, change in model.buckets.outcomes.items():
        assert await engine.entry_change(token) == change, "outcomes"
    for bucket in BUCKETS:
        entries = model.buckets.entries[bucket]
        last = model.buckets.last.get(bucket, 0) if entries else 0
        by_key = [entries[key] for key in sorted(entries)]
        assert await engine.entries(bucket, b"", None, 100) == EntryPage(by_key, False), "entries by key"
        for key in ENTRIES:
            assert await engine.entry(bucket, key) == entries.get(key), "entries"
        since = rng.choice((0, *(entry.revision for entry in entries.values())))
        found = await engine.bucket_changes(bucket, since, 100)
        is_reset = since != last and not (entries and since >= model.buckets.whole_since[bucket])
        newer = sorted((each for each in entries.values() if each.revision > since), key=attrgetter("revision"))
        assert found == BucketChanges([] if is_reset else newer, last, False, is_reset), "changes of a bucket"


async def _check_access(engine: Queries, model: Model) -> None:
    access = model.access
    rules = model.event_rules.by_name
    assert await engine.event_rules(None, 100) == [rules[name] for name in sorted(rules)]
    assert await engine.event_rule_count() == len(rules)
    assert await engine.event_rule(b"r") == rules.get(b"r")
    assert await engine.users(None, 100) == [access.users[name] for name in sorted(access.users)]
    assert await engine.users(USERS[0], 1) == [access.users[name] for name in sorted(access.users) if name][:1]
    assert await engine.rules_of_all(None, 100) == sorted(access.rules.items())
    for name in USERS:
        assert await engine.user(name) == access.users.get(name)
        assert await engine.rules(name) == access.rules.get(name, [])
        assert await engine.user_state(name) == access.states.get(name, UserState())
        assert await engine.role(name) == access.roles.get(name)
    assert await engine.user_states(None, 100) == sorted(access.states.items())
    assert await engine.roles(None, 100) == [access.roles[name] for name in sorted(access.roles)]
    assert await engine.bans(None, 100) == [access.bans[target] for target in sorted(access.bans)]
    assert await engine.ban_count() == len(access.bans)
    assert await engine.ban(b"user:c1") == access.bans.get(b"user:c1")
    asked = [access.open_requests[number] for number in sorted(access.open_requests)]
    found = await engine.open_access_requests()
    assert found == asked, f"requests are {found} and not {asked}"
    assert await engine.open_access_requests(USERS[1]) == [each for each in asked if each.user == USERS[1]]
    assert await engine.decided_access_requests(1 << 62, 1000) == access.decided_requests[:-1001:-1]
    assert await engine.decided_access_requests(2, 1) == access.decided_requests[:2][-1:]


async def _check_names(engine: Queries, model: Model, rng: Random) -> None:
    for above in (b"", b"a/", b"/", b"many/", b"b/x/"):
        children: list[Child] = []
        after: bytes | None = None
        while True:
            page = await engine.children(above, after, rng.choice((1, 2, 1000)))
            children += page.children
            after = page.after
            if after is None:
                break
        assert children == naive_children(model.topics, above), "children"
    for prefix in (b"", b"a", b"many/1"):
        found: list[bytes] = []
        after = None
        while True:
            names = await engine.topics(prefix, after, rng.choice((1, 3, 1000)))
            found += names.names
            after = names.after
            if after is None:
                break
        wanted = [topic for topic in model.topics if topic.startswith(prefix)]
        assert found == sorted(wanted, key=levels), "topics"


def naive_children(topics: Iterable[bytes], above: bytes) -> list[Child]:
    """The answer that `Store.children` must give for these topics."""
    below = [levels(topic[len(above) :]) for topic in topics if topic.startswith(above)]
    names = sorted({given[0] for given in below})
    return [Child(name, [name] in below, any(given[0] == name and len(given) > 1 for given in below)) for name in names]


async def _check_retained(engine: Queries, model: Model, rng: Random) -> None:
    for name in (*FILTERS, *INBOXES, b"c"):
        found: list[tuple[bytes, bytes, int]] = []
        limit = rng.choice((1, 2, 100))
        while True:
            page = await engine.retained(name, found[-1][0] if found else None, limit)
            found += [(value.topic, value.frame, value.entered) for value in page]
            if len(page) < limit:
                break
        wanted = [(topic, entry.frame, entry.cause) for topic, entry in model.retained.items() if matches(name, topic)]
        assert found == sorted(wanted, key=lambda item: levels(item[0])), "retained"


async def _check_keys(engine: Queries, model: Model, rng: Random) -> None:
    for parent, key in sorted({*model.keys, (b"a", b"k"), (b"a", b"")}):
        known = model.keys.get((parent, key), [])
        entries = sorted(entry for entry in known if _is_there(engine, entry))
        found: list[bytes] = []
        after: int | None = None
        while True:
            page = await engine.by_key(parent, key, after, rng.choice((1, 2, 100)), rng.choice((1, 500, 1 << 20)))
            starts = [*record.split(page.data), len(page.data)]
            assert page.count == len(starts) - 1
            found += [page.data[start:end] for start, end in pairwise(starts)]
            after = page.after
            if after is None:
                break
        floor = engine._views.floors.of_parent(parent)
        left = [entry.frame for entry in entries if _is_there(engine, entry)]
        young = {f for f in left if record.store_time_of(f, 0) >= floor or record.decode(f, 0)[1] & FLAG_HELD}
        wanted = [entry.frame for entry in entries if entry.frame in young or entry.frame in found]
        assert found == wanted, "keys"  # of what retention took meanwhile, some may have been found before


async def _check_queue(engine: Queries, model: Model, name: bytes, rng: Random) -> None:
    entries = model.queues.get(name, [])
    bounds = await engine.bounds(name)
    begin = _first(engine, model, name)
    assert (bounds.begin, bounds.end) == (begin, len(entries)), f"queue {name!r}"
    hidden = [entry for entry in entries[:begin] if _is_there(engine, entry)]
    assert all(_is_old(engine._views.floors, entry) for entry in hidden), f"queue {name!r} begins too late"
    if begin:
        await _check_refused(engine, name, begin - 1)
    await _check_refused(engine, name, len(entries) + 1)
    offset = begin
    while offset < len(entries):
        limit, floors = rng.choice((1, 2, 100)), engine._views.floors
        got = await _attempt(engine.fetch(name, offset, limit, rng.choice((1, 500, 1 << 20))))
        if isinstance(got, OffsetOutOfRange):
            assert offset < got.begin == _first(engine, model, name), f"queue {name!r} at {offset} is there"
            offset = got.begin
            continue
        found, passed = entries[got.offset : got.next_offset], entries[offset : got.offset]
        assert got.count <= limit and (found or got.offset == len(entries)), f"queue {name!r} at {offset}"
        assert got.data == b"".join(entry.frame for entry in found), f"queue {name!r} at {got.offset}: wrong data"
        assert not any(_is_old(floors, entry) for entry in found), f"queue {name!r} at {got.offset}: too old"
        left = [entry for entry in passed if _is_there(engine, entry)]
        assert all(_is_old(engine._views.floors, entry) for entry in left), f"queue {name!r} at {offset}: skipped"
        offset = got.next_offset
    if entries:
        time = rng.choice(entries).time + rng.randrange(-1, 2)
        before = sum(entry.time < time for entry in entries)
        assert await engine.offset_at(name, time) == max(before, _first(engine, model, name)), "offset by time"


def _first(engine: Queries, model: Model, name: bytes) -> int:
    """Where a queue begins now: it has messages of one parent topic, which may have an age of its own, or of any.

    Nothing that entered before the log's first record is there. At the next start, that is the first record left.
    """
    floors, floor = engine._views.floors, engine._views.begin_time
    if name[:1] == b"t":
        floor = max(floor, floors.of_parent(parent_of(name[1:])))
    elif name[:1] == b"p":
        floor = max(floor, floors.of_parent(name[1:-3]))
    return model.first(name, log_begin(engine), floor)


def _is_there(engine: Queries, entry: Entry) -> bool:
    """Whether retention has not removed the record of a message."""
    return not engine._views.is_gone(entry.position)


def _is_old(floors: Floors, entry: Entry) -> bool:
    """Whether the parent topic keeps nothing as old as that."""
    return entry.time < floors.of_parent(parent_of(entry.topic))


async def _check_refused(engine: Queries, name: bytes, offset: int) -> None:
    """An offset outside the queue is told with the queue's bounds."""
    refusal = await _attempt(engine.fetch(name, offset, 1, 1))
    bounds = await engine.bounds(name)
    assert isinstance(refusal, OffsetOutOfRange), f"queue {name!r} has something at {offset}"
    assert (refusal.offset, refusal.begin, refusal.end) == (offset, bounds.begin, bounds.end)


async def _attempt(answer: Coroutine[None, None, Answer]) -> Answer | OffsetOutOfRange:
    try:
        return await answer
    except OffsetOutOfRange as error:
        return error


async def settled(futures: "list[asyncio.Future[object]]") -> None:
    """Wait for all; a store that answers none of them is a violation too."""
    async with asyncio.timeout(30):
        await asyncio.gather(*futures)
