"""The rows of the views, byte by byte: those that `docs/format.md` wants for what the model says, and those that views
make which are folded from the log's first record on, in other pieces.

Retention changes rows in ways that a reader cannot see: index entries of dropped generations are gone, with the ends
of their queues written down, a row may have the record itself in place of where it is, and a reference may be to
nothing instead of to what is gone. `Rows` checks that and then leaves it out, so that all else can be compared.
"""

from collections import Counter, defaultdict
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from random import Random
from struct import pack

import record
from matcher.names import has_wildcard, parent_of
from record.layout import FLAG_HALF, Kind
from store.api import AccessRequest, DeadLetter, Rule
from store.config import StoreConfig
from store.engine import Engine
from store.log.writer import SealedBatch
from store.views.database.database import Database
from store.views.digest import digest_of_views
from store.views.fold import Views
from tests.store.simulation.model import Entry, Model
from tests.store.simulation.model_sessions import NEVER, Session
from tests.store.simulation.truth import Truth

FORMAT = 1
REFERENCE = 24  # bytes
NOTHING = bytes(16)  # position, length and tag of a reference to what is gone
NO_PAYLOAD, IS_KEPT = 1, 2


class Rows:
    """Rows without what retention did to them: the queue index by queue, as (first offset, references), all others by
    key. `begin` is the log's, `oldest` the generation before which the index is dropped."""

    def __init__(self, begin: int, oldest: int) -> None:
        self.begin = begin
        self.oldest = oldest
        self.queues: dict[bytes, tuple[int, bytes]] = {}
        self.others: dict[bytes, bytes] = {}

    def add_references(self, digest: bytes, first: int, refs: bytes) -> None:
        known = self.queues.get(digest, (first, b""))
        assert first == known[0] + len(known[1]) // REFERENCE, "offsets are not dense"
        masked = [self.masked(refs[at : at + REFERENCE]) for at in range(0, len(refs), REFERENCE)]
        self.queues[digest] = known[0], known[1] + b"".join(masked)

    def masked(self, ref: bytes) -> bytes:
        """A reference of which nothing is compared but the time, if what it refers to is gone."""
        return NOTHING + ref[16:] if int.from_bytes(ref[:8], "little") < self.begin else ref

    def assert_equal(self, other: "Rows", what: str) -> None:
        for digest in {*self.queues, *other.queues}:
            assert self.queues.get(digest) == other.queues.get(digest), f"the index is not {what}"
        for key in sorted({*self.others, *other.others}):
            ours, theirs = self.others.get(key), other.others.get(key)
            assert ours == theirs, f"row {key!r} is {ours!r} and not {theirs!r}, {what}"


async def check_rows(engine: Engine, truth: Truth, folder: Path | None, rng: Random) -> None:
    """The rows of the views are those that the model wants and, with a `folder`, those that views make which are folded
    there from all records there ever were; these views have the same digest. A store that grew behind `truth` is not
    looked at."""
    if engine.stats().failed:
        return
    await engine._checkpointed()
    if engine.stats().checkpoint != truth.end:
        return
    config = engine._log._config
    found = rows_found(engine, truth)
    wanted = rows_wanted(truth.model, found, config.segment_size * config.generation_segments)
    found.assert_equal(wanted, "what the model wants")
    if folder is not None:
        replayed, digest = rows_replayed(config, truth, found, folder, rng)
        found.assert_equal(replayed, "what a fresh replay makes")
        own = digest_of_views(engine._database, config.segment_size * config.generation_segments)
        assert not truth.frames or own == digest, "the digest is another than that of a fresh replay"


def rows_found(engine: Engine, truth: Truth) -> Rows:
    """The rows that the store has."""
    rows = dict(engine._database.scan(b"", b""))
    oldest = int.from_bytes(rows.pop(b"moldest", b""), "big")
    begin = rows.pop(b"mbegin", b"")
    assert int.from_bytes(begin, "big") >= engine._segments.begin, "the log's begin would be damage"
    last = record.store_time_of(truth.frames[-1], 0) if truth.frames else 0
    saved = rows.pop(b"mcheckpoint", None)
    if truth.frames:
        assert saved is not None, "there is no checkpoint"
        assert saved[:8] + saved[16:] == pack(">QQI", truth.end, last, FORMAT), "the checkpoint is another"
    _assert_dropped(rows, oldest, truth.model, engine._segments.size * engine._log._config.generation_segments)
    return _plain_rows(rows, engine._views.begin, oldest, truth)


def rows_replayed(config: StoreConfig, truth: Truth, like: Rows, folder: Path, rng: Random) -> tuple[Rows, bytes]:
    """The rows of views, made in `folder`, that are folded from all records there ever were, and their digest."""
    fresh = Database(folder, 0)
    try:
        views = Views(fresh, config, 0, 0)
        for batch in _batches(truth.frames, config.segment_size, rng):
            views.fold(batch)
            if rng.random() < 0.1:
                views.checkpoint(views.position)
        views.checkpoint(views.position)
        rows = {key: value for key, value in fresh.scan(b"", b"") if key[:1] != b"m"}
        digest = digest_of_views(fresh, config.segment_size * config.generation_segments)
    finally:
        fresh.close()
    return _plain_rows(rows, like.begin, like.oldest, truth), digest


def rows_wanted(model: Model, like: Rows, generation_bytes: int) -> Rows:
    """The rows that docs/format.md wants."""
    wanted = Rows(like.begin, like.oldest)
    dropped = like.oldest * generation_bytes
    for queue, entries in model.queues.items():
        digest = blake2b(queue, digest_size=16).digest()
        first = sum(entry.cause < dropped for entry in entries)
        if first < len(entries):
            wanted.add_references(digest, first, b"".join(map(_reference, entries[first:])))
        else:
            wanted.others[b"e" + digest] = pack(">Q", first)
    rows = wanted.others
    if model.begin is not None:
        rows[b"B"] = pack(">QQ", *model.begin)
    for letter, count, was_any in (
        (b"r", len(model.retained), model.were_retained),
        (b"h", len(model.held.messages), model.were_held),
        (b"c", sum(held.is_half for held in model.held.messages.values()), model.were_half),
        (b"N", len(model.access.bans), model.access.were_bans),
        (b"J", len(model.access.decided_requests), bool(model.access.decided_requests)),
        (b"F", len(model.event_rules.by_name), model.event_rules.were_any),
        (b"K", model.buckets.count, model.buckets.were_any),
        (b"v", model.buckets.size, model.buckets.were_any),
        (b"Z", len(model.buckets.outcomes), bool(model.buckets.outcomes)),
    ):
        if was_any:
            rows[b"C" + letter] = pack(">Q", count)
    for topic in model.topics:
        rows[b"t" + topic.replace(b"/", b"\0")] = b""
    for topic, entry in model.retained.items():
        rows[b"r" + topic.replace(b"/", b"\0")] = _reference(entry)[:16] + _by(entry)
    _add_by_generation(rows, model, dropped, generation_bytes)
    _add_sessions(rows, model)
    _add_wills(rows, model)
    _add_held(rows, model)
    _add_groups(rows, model)
    _add_access(rows, model)
    _add_buckets(rows, model)
    for name, rule in model.event_rules.by_name.items():
        head = pack(">QBHH", rule.set_ms, rule.reads_parents, len(rule.by), len(rule.filters))
        rows[b"F" + name] = head + rule.by + b"".join(map(_sized, rule.filters)) + rule.definition
    for parent, count in model.counts.items():
        growths = [pack(f">H{len(ends)}Q", len(ends), *ends) for ends in model.growths[parent]]
        rows[b"T" + parent] = pack(">H", count) + b"".join(growths)
    for producer, (sequence, position, records, digest) in model.producers.items():
        rows[b"P" + producer] = pack(">QQIQ", sequence, position, records, digest)
    return wanted


def _add_buckets(rows: dict[bytes, bytes], model: Model) -> None:
    buckets = model.buckets
    for bucket, entries in buckets.entries.items():
        for key, entry in entries.items():
            rows[b"K" + _sized(bucket) + key] = pack(">QQ", entry.revision, entry.put_ms) + entry.value
            rows[b"X" + _sized(bucket) + pack(">Q", entry.revision)] = key
        if entries:
            rows[b"M" + bucket] = pack(">QQQ", buckets.last[bucket], buckets.whole_since[bucket], len(entries))
    for place, (token, change) in enumerate(buckets.outcomes.items()):
        rows[b"Z" + pack(">I", place)] = token
        rows[b"I" + token] = pack(">BQ", change.outcome, change.revision)


def _add_sessions(rows: dict[bytes, bytes], model: Model) -> None:
    wanted: defaultdict[bytes, int] = defaultdict(int)
    for client, session in model.sessions.by_client.items():
        rows[b"s" + client] = pack(">QIQ", session.epoch, session.expiry, session.closed_at) + session.user
        if not session.closed_at:
            rows[b"a" + client] = pack(">I", session.reach) + session.gateway
        elif session.expiry != NEVER:
            deadline = session.closed_at + session.expiry * 1000
            rows[b"x" + pack(">Q", deadline) + client] = pack(">Q", session.epoch)
        for name, s in session.subscriptions.items():
            options = s.qos | s.no_local << 2 | s.retain_as_published << 3 | s.retain_handling << 4
            options |= (s.replay >= 0) << 6 | (s.sent_before >= 0) << 7
            places = [place for place in (s.replay, s.sent_before) if place >= 0]
            row = pack(">BIQQ", options, s.identifier, s.start_position, s.offset)
            rows[b"u" + _sized(client) + name] = row + pack(f">{len(places)}Q", *places)
            wanted[name] += has_wildcard(name) and name not in model.shares.there
        _add_exchanges(rows, client, session)
    for name in (*model.shares.wanted(), *model.event_rules.wanted()):
        wanted[name] += 1
    for name, count in model.shares.members().items():
        rows[b"y" + name] = pack(">I", count)
    for name, nodes in model.shares.held.items():
        rows[b"z" + name] = b"\0".join(sorted(nodes))
    for name in model.gateways:
        rows[b"G" + name] = b""
    for name, count in wanted.items():
        if count:
            rows[b"f" + name] = pack(">I", count)
    users = Counter(session.user for session in model.sessions.by_client.values() if session.user)
    rows.update((b"Y" + user, pack(">I", count)) for user, count in users.items())
    if model.sessions.were_any:
        rows[b"S"] = pack(">Q", len(model.sessions.by_client))


def _add_wills(rows: dict[bytes, bytes], model: Model) -> None:
    for client, waiting in model.sessions.wills.by_client.items():
        will = waiting.will(client)
        message = record.frame(Kind.MESSAGE, will.flags, 0, will.topic, client, will.properties, will.payload)
        marks = will.is_account | (not will.is_allowed) << 1
        head = pack(">QIQB", will.epoch, will.delay_interval, will.due_ms, marks)
        sizes = pack(">HHH", len(will.gateway), len(will.user_name), len(will.source))
        rows[b"W" + client] = head + sizes + will.gateway + will.user_name + will.source + message
        if will.due_ms:
            rows[b"V" + pack(">Q", will.due_ms) + client] = b""


def _add_exchanges(rows: dict[bytes, bytes], client: bytes, session: Session) -> None:
    for number in session.inbound:
        rows[b"i" + _sized(client) + pack(">H", number)] = b""
    for number, sent in session.outbound.items():
        rows[b"o" + _sized(client) + pack(">H", number)] = (
            pack(">BQ", sent.released | sent.qos << 1, sent.offset) + sent.topic_filter
        )
    for name, pending in session.pending.items():
        rows[b"R" + _sized(client) + name] = pack(">Q", pending.since) + (pending.after or b"")


def _add_held(rows: dict[bytes, bytes], model: Model) -> None:
    for handle, held in model.held.messages.items():
        _, flags, _, topic, publisher, properties, payload = record.decode(held.frame, 0)
        digests = [
            blake2b(parent_of(topic) + b"\0" + key, digest_size=8).digest() for key in record.keys_of(properties)
        ]
        rows[b"h" + pack(">Q", handle)] = b"".join(
            (
                pack(
                    ">HBI", flags if held.is_half else flags & ~FLAG_HALF, 0 if payload else NO_PAYLOAD, len(held.frame)
                ),
                pack(">IQQI", record.tag_of(topic, properties), held.due or 0, held.check, held.rounds),
                pack(">BH", len(digests), len(topic)),
                *digests,
                topic,
                publisher,
            )
        )
        if held.is_half:
            rows[b"c" + pack(">BQQ", held.rounds > 0, held.check, handle)] = b""
        else:
            rows[b"d" + pack(">QQ", held.due, handle)] = b""


def _add_by_generation(rows: dict[bytes, bytes], model: Model, dropped: int, generation_bytes: int) -> None:
    """Rows that go with their generation: those before the position `dropped` are gone."""
    for (parent, key), entries in model.keys.items():
        digest = blake2b(parent + b"\0" + key, digest_size=8).digest()
        for entry in entries:
            if entry.position >= dropped:
                generation = entry.position // generation_bytes
                rows[b"k" + pack(">I8sQ", generation, digest, entry.position)] = pack(">I", len(entry.frame))
    for queue, letters in model.letters.items():
        digest = blake2b(queue, digest_size=16).digest()
        for offset, (letter, entry) in enumerate(zip(letters, model.queues[queue], strict=True)):
            if entry.cause >= dropped:
                key = pack(">I16sQ", entry.cause // generation_bytes, digest, offset)
                rows[b"D" + key] = _dead_letter(letter)
    for queue, entries in model.queues.items():
        for entry in entries if queue[:1] == b"p" else ():
            if entry.cause != entry.position >= dropped:
                generation = entry.position // generation_bytes
                rows[b"w" + pack(">I", generation) + queue[1:-2] + pack(">Q", entry.position)] = b""


def _add_groups(rows: dict[bytes, bytes], model: Model) -> None:
    for (group, parent), offsets in model.committed.items():
        for partition, offset in offsets.items():
            rows[b"g" + _sized(group) + _sized(parent) + pack(">H", partition)] = pack(">Q", offset)
    for group, (since, by) in model.groups.pauses.items():
        rows[b"H" + group] = pack(">Q", since) + by
    queues: defaultdict[bytes, int] = defaultdict(int)
    for (group, queue), place in model.groups.places.items():
        queues[group] += 1
        rows[b"n" + _sized(group) + queue] = pack(">QQI", place.floor, place.next, len(place.entries))
        for block in {offset // 256 for offset in place.entries}:
            runs: list[list[int]] = []  # first, last, deliveries, at, first leased, last leased
            for offset in sorted(offset for offset in place.entries if offset // 256 == block):
                entry = [*place.entries[offset], *place.times[offset]]
                if runs and runs[-1][1:] == [offset - 1, *entry]:
                    runs[-1][1] = offset
                else:
                    runs.append([offset, offset, *entry])
            packed = [pack(">BBBQQQ", first % 256, last - first, *entry) for first, last, *entry in runs]
            rows[b"l" + _sized(group) + _sized(queue) + pack(">Q", block)] = b"".join(packed)
    for group, count in queues.items():
        rows[b"j" + group] = pack(">I", count)


def _add_access(rows: dict[bytes, bytes], model: Model) -> None:
    for name, user in model.access.users.items():
        rows[b"U" + name] = pack(">I32s32s", user.iterations, user.stored_key, user.server_key) + user.salt
    for name, rules in model.access.rules.items():
        rows[b"A" + name] = b"".join(map(_rule_row, rules))
    for name, state in model.access.states.items():
        rows[b"E" + name] = bytes([state.is_super | state.is_disabled << 1]) + _names_row(state.roles)
    for name, role in model.access.roles.items():
        rows[b"L" + name] = _names_row(role.inherits) + b"".join(map(_rule_row, role.rules))
    for number, asked in model.access.open_requests.items():
        rows[b"Q" + pack(">Q", number)] = _request_row(asked)
    for number, each in enumerate(model.access.decided_requests):
        head = pack(">QQBHH", each.number, each.decided_ms, each.outcome, len(each.by), len(each.why))
        rows[b"J" + pack(">Q", number)] = head + each.by + each.why + _request_row(each)
    for target, ban in model.access.bans.items():
        rows[b"N" + target] = pack(">QQH", ban.until_ms, ban.since_ms, len(ban.by)) + ban.by + ban.reason


def _request_row(asked: AccessRequest) -> bytes:
    head = pack(">QQHH", asked.since_ms, asked.until_ms, len(asked.user), len(asked.reason))
    return head + asked.user + asked.reason + _rule_row(asked.rule)


def _names_row(names: tuple[bytes, ...]) -> bytes:
    return pack(">H", len(names)) + b"".join(map(_sized, names))


def _rule_row(rule: Rule) -> bytes:
    where = ",".join(rule.sources).encode()
    head = bytes([rule.allow | rule.is_prefix << 1, rule.actions, rule.kind])
    return head + pack(">HH", len(rule.name), len(where)) + rule.name + where


def _assert_dropped(rows: dict[bytes, bytes], oldest: int, model: Model, generation_bytes: int) -> None:
    """There are no rows of generations before `oldest`, but for those of what was let go when its record was gone."""
    partitions = [entries for name, entries in model.queues.items() if name[:1] == b"p"]
    late = {
        entry.position
        for entries in partitions
        for entry in entries
        if entry.position // generation_bytes < entry.cause // generation_bytes
    }
    for key in rows:
        if key[:1] in b"qkwD" and int.from_bytes(key[1:5], "big") < oldest:
            assert key[:1] in b"kw" and int.from_bytes(key[-8:], "big") in late, "the index of a generation is left"


def _plain_rows(rows: dict[bytes, bytes], begin: int, oldest: int, truth: Truth) -> Rows:
    plain = Rows(begin, oldest)
    ends = {key[1:]: int.from_bytes(value, "big") for key, value in rows.items() if key[:1] == b"e"}
    counted: dict[bytes, int] = defaultdict(int)  # references of dropped generations
    kept = {key[1:] for key in rows if key[:1] == b"b"}
    for key, value in sorted(rows.items()):
        view, dropped = key[:1], int.from_bytes(key[1:5], "big") < oldest
        if view == b"q" and dropped:
            counted[key[5:21]] += len(value) // REFERENCE
        elif view == b"q":
            plain.add_references(key[5:21], int.from_bytes(key[21:], "big"), value)
        elif view == b"r":
            own = REFERENCE if len(value) <= REFERENCE + 8 else record.length_of(value, 0)
            plain.others[key] = _reference_to(value[:own], truth)[:16] + value[own:]
        elif view == b"b":
            _reference_to(value, truth)
            assert b"h" + key[1:] in rows, "a message is kept that is not held"
        elif view == b"h":
            assert bool(value[2] & IS_KEPT) == (key[1:] in kept), "a held message is kept, or is not"
            plain.others[key] = value[:2] + bytes([value[2] & ~IS_KEPT]) + value[3:]
        elif view not in b"ekwD" or (view in b"kwD" and not dropped):
            plain.others[key] = value
    for digest in {*ends, *counted}.difference(plain.queues):
        plain.others[b"e" + digest] = pack(">Q", max(ends.get(digest, 0), counted[digest]))
    return plain


def _batches(frames: list[bytes], segment_size: int, rng: Random) -> list[SealedBatch]:
    """The records in pieces, none of which goes on in another segment."""
    batches: list[SealedBatch] = []
    piece: list[bytes] = []
    for frame in frames:
        position = record.position_of(frame, 0)
        if piece and (position % segment_size == 0 or rng.random() < 0.3):
            batches.append(_batch(piece))
            piece = []
        piece.append(frame)
    return [*batches, _batch(piece)] if piece else batches


def _batch(frames: list[bytes]) -> SealedBatch:
    return SealedBatch(record.position_of(frames[0], 0), b"".join(frames), record.store_time_of(frames[-1], 0))


def _dead_letter(letter: DeadLetter) -> bytes:
    numbers = letter.deliveries, letter.reason, letter.first_ms, letter.last_ms, letter.offset, len(letter.queue)
    return pack(">BBQQQI", *numbers) + letter.queue + letter.error


def _reference(entry: Entry) -> bytes:
    tag = record.tag_of(*itemgetter(3, 5)(record.decode(entry.frame, 0)))
    return pack("<QIIQ", entry.position, len(entry.frame), tag, entry.time)


def _by(entry: Entry) -> bytes:
    """Which record let a message in, if not its own."""
    return b"" if entry.cause == entry.position else pack("<Q", entry.cause)


def _reference_to(value: bytes, truth: Truth) -> bytes:
    """The reference of a record that is kept in its place."""
    if len(value) == REFERENCE:
        return value
    position = record.position_of(value, 0)
    assert truth.behind(position)[0] == value, "what is kept is not the record that was"
    return _reference(Entry(position, position, 0, value))


def _sized(name: bytes) -> bytes:
    return pack(">H", len(name)) + name
