"""What became of a message, read from the log: whatever a group or a session does to it is a record behind it.

A call looks through one stretch of the log. What the next one has to know travels to the client and back in `after`.
"""

from collections.abc import Iterator
from typing import Final

import orjson

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.status import invalid
from matcher.names import has_wildcard, is_shared, matches, parent_of, split_shared
from record.layout import FLAG_DELAYED, FLAG_HELD, FLAG_REVIVED, Kind
from store import control
from store.api import Store, dead_letter_queue, filter_queue, subscription_queue, topic_queue

_CHUNK: Final = 1 << 20  # bytes of log read at once
_PAGE: Final = 256  # records of a queue among which the message is looked for at once
_PAGES: Final = 16
_MAX_KNOWN: Final = 4_096  # groups and cursors about which one trace remembers something
_KIND: Final = 11  # where a frame says it, and its flags
_FLAGS: Final = 32

Event = pb.TraceEvent
_OF_MEMBERS: Final = frozenset((Event.LEASED, Event.POSTPONED, Event.FINISHED, Event.DEAD_LETTERED))


class _Seen:
    """What a trace has seen so far: where to read on, what the message's record is, and of whom it was told."""

    __slots__ = ("entered_ms", "known", "place", "position")

    def __init__(self, position: int, place: int, entered_ms: int, known: list[str]) -> None:
        self.position = position  # of the next record of the log
        self.place = place  # of the message's record, which is another where a copy stands in for it
        self.entered_ms = entered_ms  # when it entered its queues; 0: it has not
        self.known = set(known)

    def packed(self) -> bytes:
        return orjson.dumps([self.position, self.place, self.entered_ms, sorted(self.known)])

    def is_first(self, name: str) -> bool:
        """Whether nothing was remembered under this name, which now is."""
        if name in self.known or len(self.known) >= _MAX_KNOWN:
            return False
        self.known.add(name)
        return True


class Trace:
    """One page of a trace."""

    def __init__(self, store: Store, handle: int, frame: bytes) -> None:
        self._store = store
        self._handle = handle
        _, flags, _, self._topic, self._publisher, _, _ = record.decode(frame, 0)
        self._stored_ms = record.store_time_of(frame, 0)
        self._is_held = bool(flags & FLAG_HELD)
        self._is_delayed = bool(flags & FLAG_DELAYED)
        self._length = len(frame)
        self._offsets: dict[bytes, int] = {}  # by queue, of the message; -1: it is not in there
        self._events: list[Event] = []

    async def page(self, after: bytes | None, max_bytes: int) -> pb.TraceReply:
        """The events of the next `max_bytes` of log."""
        if after is None:
            seen = _Seen(self._handle + self._length, self._handle, 0 if self._is_held else self._stored_ms, [])
            await self._stored(seen)
        else:
            seen = _seen(after)
        left = max_bytes
        while left > 0:
            chunk = await self._store.read(seen.position, min(_CHUNK, left))
            if not chunk.data:
                break
            for start in record.split(chunk.data):
                kind = chunk.data[start + _KIND]
                if kind != Kind.MESSAGE:
                    await self._control(seen, chunk.data, start, kind)
                elif chunk.data[start + _FLAGS] & FLAG_REVIVED and record.trailer_of(chunk.data, start) == self._handle:
                    seen.place = record.position_of(chunk.data, start)
                    self._entered(seen, chunk.data, start)
            left -= len(chunk.data)
            seen.position = chunk.next_position
        return pb.TraceReply(events=self._events, after=seen.packed() if left <= 0 else None)

    async def _stored(self, seen: _Seen) -> None:
        event = Event(kind=Event.STORED, time_ms=self._stored_ms, position=self._handle, who=self._publisher.decode())
        if seen.entered_ms:
            for partition in range(self._store.partitions):
                queue = _partition(self._topic, partition)
                offset = await self._offset(seen, queue)
                if offset >= 0:
                    event.queue, event.offset = _shown(queue), offset
        self._events.append(event)

    async def _control(self, seen: _Seen, data: bytes, start: int, kind: int) -> None:
        _, _, _, subject, _, _, payload = record.decode(data, start)
        if kind == Kind.POPPED:
            await self._popped(seen, data, start, subject, payload)
        elif kind == Kind.SETTLED:
            await self._settled(seen, data, start, subject, payload)
        elif kind == Kind.DEAD_LETTERED:
            letters = control.DeadLettered.parse(payload)
            offset = await self._offset(seen, letters.queue)
            if offset in letters.offsets:
                self._tell(Event.DEAD_LETTERED, data, start, subject, letters.queue, offset)
                self._offsets.pop(dead_letter_queue(subject), None)
                seen.known.add(f"dead {record.store_time_of(data, start)} {subject.decode()}")
        elif kind == Kind.GROUP_RESET:
            for queue, to in control.GroupReset.parse(payload).offsets.items():
                offset = await self._offset(seen, queue)
                if offset >= 0 and (_who(subject, queue) in seen.known or to > offset):
                    seen.is_first(_who(subject, queue))
                    self._tell(Event.MOVED, data, start, subject, queue, to)
        elif kind == Kind.SHARE_HANDED_OVER:
            queue = subscription_queue(subject)
            offset = await self._offset(seen, queue)
            for client, _, at in control.ShareHandedOver.parse(payload).handed:
                if at == offset:
                    self._tell(Event.FINISHED, data, start, subject, queue, offset)
                    self._tell(Event.SENT, data, start, client, queue, offset)
        elif kind in {Kind.CURSORS_COMMITTED, Kind.OUTBOUND_CHANGED}:
            await self._session(seen, data, start, kind, subject, payload)
        else:
            self._held(seen, data, start, kind, payload)

    async def _popped(self, seen: _Seen, data: bytes, start: int, group: bytes, payload: bytes) -> None:
        event = control.Popped.parse(payload)
        for queue, runs in event.queues.items():
            offset = await self._offset(seen, queue)
            if offset < 0:
                continue
            if _holds(runs, offset):
                seen.is_first(_who(group, queue))
                self._tell(Event.LEASED, data, start, group, queue, offset, event.until_ms)
            elif max(first for first, _ in runs) > offset and seen.is_first(_who(group, queue)):
                self._tell(Event.PASSED, data, start, group, queue, offset)

    async def _settled(self, seen: _Seen, data: bytes, start: int, group: bytes, payload: bytes) -> None:
        event = control.Settled.parse(payload)
        for queue, done in event.done.items():
            offset = await self._offset(seen, queue)
            if _holds(done, offset):
                self._tell(Event.FINISHED, data, start, group, queue, offset)
        for queue, again in event.again.items():
            offset = await self._offset(seen, queue)
            for first, count, at in again:
                if first <= offset < first + count:
                    self._tell(Event.POSTPONED, data, start, group, queue, offset, at)

    async def _session(self, seen: _Seen, data: bytes, start: int, kind: int, client: bytes, payload: bytes) -> None:
        if kind == Kind.OUTBOUND_CHANGED:
            for _, topic_filter, at, _ in control.OutboundChanged.parse(payload).sent:
                queue = self._queue_of(topic_filter)
                if queue and await self._offset(seen, queue) == at:
                    self._tell(Event.SENT, data, start, client, queue, at)
            return
        for topic_filter, behind in control.CursorsCommitted.parse(payload).offsets.items():
            queue = self._queue_of(topic_filter)
            offset = await self._offset(seen, queue) if queue else -1
            if 0 <= offset < behind and seen.is_first(_who(client, queue)):
                found = await self._store.subscriptions(client, [topic_filter])
                if topic_filter not in found or found[topic_filter].start_position <= seen.place:
                    self._tell(Event.ACKNOWLEDGED, data, start, client, queue, offset)

    def _held(self, seen: _Seen, data: bytes, start: int, kind: int, payload: bytes) -> None:
        if not self._is_held:
            return
        if kind == Kind.TIMERS_FIRED and self._handle in control.TimersFired.parse(payload).handles:
            self._entered(seen, data, start)
        elif kind == Kind.TIMERS_RECALLED and self._handle in control.TimersFired.parse(payload).handles:
            self._tell(Event.RECALLED, data, start)
        elif kind == Kind.TRANSACTIONS_ENDED:
            ended = control.TransactionsEnded.parse(payload)
            if self._handle in ended.committed:
                self._tell(Event.COMMITTED, data, start)
                if not self._is_delayed:  # else it waits for its time
                    seen.entered_ms = record.store_time_of(data, start)
                    self._offsets.clear()
            elif self._handle in ended.rolled_back:
                self._tell(Event.ROLLED_BACK, data, start)

    def _entered(self, seen: _Seen, data: bytes, start: int) -> None:
        seen.entered_ms = record.store_time_of(data, start)
        self._offsets.clear()
        self._tell(Event.ENTERED, data, start)

    def _tell(
        self,
        kind: "Event.Kind",
        data: bytes,
        start: int,
        who: bytes = b"",
        queue: bytes = b"",
        offset: int = 0,
        until: int = 0,
    ) -> None:
        self._events.append(
            Event(
                kind=kind,
                time_ms=record.store_time_of(data, start),
                position=record.position_of(data, start),
                who=who.decode(),
                queue=_shown(queue) if queue else "",
                offset=offset,
                until_ms=until,
                member=_member_of(data, start) if kind in _OF_MEMBERS else "",
            )
        )

    def _queue_of(self, topic_filter: bytes) -> bytes:
        """The queue of a session's subscription, if the message's topic is in there."""
        inner = split_shared(topic_filter)[1]
        if has_wildcard(inner):
            return filter_queue(inner) if matches(inner, self._topic) else b""
        return topic_queue(inner) if inner == self._topic else b""

    async def _offset(self, seen: _Seen, queue: bytes) -> int:
        """The message's offset in a queue, -1 where it is not (yet)."""
        offset = self._offsets.get(queue)
        if offset is None:
            offset = await self._find(seen, queue) if self._may_hold(queue) else -1
            self._offsets[queue] = offset
        return offset

    def _may_hold(self, queue: bytes) -> bool:
        name = queue[1:]
        match queue[:1]:
            case b"p":
                return name[:-3] == parent_of(self._topic)
            case b"t":
                return name == self._topic
            case b"f":
                return matches(name, self._topic)
        return True

    async def _find(self, seen: _Seen, queue: bytes) -> int:
        for time_ms in self._times(seen, queue):
            at = await self._store.offset_at(queue, time_ms)
            for _ in range(_PAGES):
                fetched = await self._store.fetch(queue, at, _PAGE, _CHUNK)
                for index, start in enumerate(record.split(fetched.data)):
                    if record.position_of(fetched.data, start) == seen.place:
                        return fetched.offset + index
                at = fetched.next_offset
                if not fetched.count:
                    break
        return -1

    def _times(self, seen: _Seen, queue: bytes) -> Iterator[int]:
        """When the message may have entered a queue, ms."""
        if queue[:1] != b"d":
            if seen.entered_ms:
                yield seen.entered_ms
            return
        for known in seen.known:
            word, _, rest = known.partition(" ")
            time_ms, _, group = rest.partition(" ")
            if word == "dead" and dead_letter_queue(group.encode()) == queue:
                yield int(time_ms)


def _seen(after: bytes) -> _Seen:
    try:
        position, place, entered_ms, known = orjson.loads(after)
        if not all(isinstance(number, int) and number >= 0 for number in (position, place, entered_ms)):
            raise ValueError("numbers are expected")
        return _Seen(position, place, entered_ms, [str(name) for name in known[:_MAX_KNOWN]])
    except (ValueError, TypeError) as error:
        raise invalid(f"`after` is not of a reply: {error}") from error


def _member_of(data: bytes, start: int) -> str:
    """Who of a group got or settled messages, of the record that says so."""
    return record.decode(data, start)[4].decode(errors="replace")


def _holds(runs: list[tuple[int, int]], offset: int) -> bool:
    return any(first <= offset < first + count for first, count in runs)


def _who(subject: bytes, queue: bytes) -> str:
    kind = "share" if is_shared(subject) else "who"
    return f"{kind} {subject.decode()} {_shown(queue)}"


def _partition(topic: bytes, partition: int) -> bytes:
    return b"p%b\0%b" % (parent_of(topic), partition.to_bytes(2, "big"))


def _shown(queue: bytes) -> str:
    """How people read a queue's name."""
    if queue[:1] == b"p":
        return f"{queue[1:-3].decode()}[{int.from_bytes(queue[-2:], 'big')}]"
    return f"dead letters of {queue[1:].decode()}" if queue[:1] == b"d" else queue[1:].decode()
