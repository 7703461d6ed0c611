"""The trace of a message: events found by reading the log from the message's record on.

Everything that a group or a session does to a message is a later record of the log. One call reads a bounded part of
the log. The state that the next call needs travels to the client and back in `after`.
"""

from collections.abc import Iterator
from typing import Final

import orjson

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.queue_names import display_name
from gateway.rpc.status import invalid
from matcher.names import has_wildcard, is_shared, matches, parent_of, split_shared
from record.layout import FLAG_DELAYED, FLAG_HELD, FLAG_REVIVED, Kind
from store import control
from store.api import Store, dead_letter_queue, filter_queue, subscription_queue, topic_queue

_CHUNK: Final = 1 << 20  # bytes of log read at once
_PAGE: Final = 256  # records per fetch in a search for the message
_PAGES: Final = 16  # fetches per search
_MAX_KNOWN: Final = 4_096  # facts about groups and sessions that one trace remembers
_KIND: Final = 11  # byte of a frame that has its kind
_FLAGS: Final = 32  # byte of a frame that has its flags

Event = pb.TraceEvent
_MEMBER_EVENTS: Final = frozenset((Event.LEASED, Event.POSTPONED, Event.FINISHED, Event.DEAD_LETTERED))


class _TraceState:
    """The state between two calls of a trace."""

    __slots__ = ("entered_ms", "known", "place", "position")

    def __init__(self, position: int, place: int, entered_ms: int, known: list[str]) -> None:
        self.position = position  # of the next record to read
        self.place = place  # position of the message's record, or of the copy that replaced it
        self.entered_ms = entered_ms  # when the message entered its queues; 0 if it has not
        self.known = set(known)

    def packed(self) -> bytes:
        return orjson.dumps([self.position, self.place, self.entered_ms, sorted(self.known)])

    def remember(self, name: str) -> bool:
        """Remember a fact. Returns False if it is known or there are too many."""
        if name in self.known or len(self.known) >= _MAX_KNOWN:
            return False
        self.known.add(name)
        return True


class Trace:
    """Reads one page of a trace."""

    def __init__(self, store: Store, handle: int, frame: bytes) -> None:
        self._store = store
        self._handle = handle
        _, flags, _, self._topic, self._publisher, _, _ = record.decode(frame, 0)
        self._stored_ms = record.store_time_of(frame, 0)
        self._is_held = bool(flags & FLAG_HELD)
        self._is_delayed = bool(flags & FLAG_DELAYED)
        self._length = len(frame)
        self._offsets: dict[bytes, int] = {}  # of the message by queue; -1 if the queue does not have it
        self._events: list[Event] = []
        self.read_to = handle  # position up to which the log was read

    async def page(self, after: bytes | None, max_bytes: int) -> pb.TraceReply:
        """The events in the next `max_bytes` of the log. after: from the previous page, None for the first one."""
        if after is None:
            state = _TraceState(self._handle + self._length, self._handle, 0 if self._is_held else self._stored_ms, [])
            await self._add_stored(state)
        else:
            state = _unpacked(after)
        left = max_bytes
        while left > 0:
            chunk = await self._store.bulk.read(state.position, min(_CHUNK, left))
            if not chunk.data:
                break
            for start in record.split(chunk.data):
                kind = chunk.data[start + _KIND]
                if kind != Kind.MESSAGE:
                    await self._control_record(state, chunk.data, start, kind)
                elif chunk.data[start + _FLAGS] & FLAG_REVIVED and record.trailer_of(chunk.data, start) == self._handle:
                    state.place = record.position_of(chunk.data, start)
                    self._add_entered(state, chunk.data, start)
            left -= len(chunk.data)
            state.position = chunk.next_position
        self.read_to = state.position
        return pb.TraceReply(events=self._events, after=state.packed() if left <= 0 else None)

    async def _add_stored(self, state: _TraceState) -> None:
        event = Event(kind=Event.STORED, time_ms=self._stored_ms, position=self._handle, who=self._publisher.decode())
        if state.entered_ms:
            for partition in range(self._store.partition_count(parent_of(self._topic))):
                queue = _partition(self._topic, partition)
                offset = await self._offset(state, queue)
                if offset >= 0:
                    event.queue, event.offset = display_name(queue), offset
        self._events.append(event)

    async def _control_record(self, state: _TraceState, data: bytes, start: int, kind: int) -> None:
        _, _, _, subject, _, _, payload = record.decode(data, start)
        if kind == Kind.POPPED:
            await self._pop_events(state, data, start, subject, payload)
        elif kind == Kind.SETTLED:
            await self._settle_events(state, data, start, subject, payload)
        elif kind == Kind.DEAD_LETTERED:
            letters = control.DeadLettered.parse(payload)
            offset = await self._offset(state, letters.queue)
            if offset in letters.offsets:
                self._add_event(Event.DEAD_LETTERED, data, start, subject, letters.queue, offset)
                error = letters.error.decode(errors="replace")
                self._events[-1].MergeFrom(Event(reason=letters.reason.name, error=error))
                self._offsets.pop(dead_letter_queue(subject), None)
                state.known.add(f"dead {record.store_time_of(data, start)} {subject.decode()}")
        elif kind == Kind.GROUP_RESET:
            for queue, to in control.GroupReset.parse(payload).offsets.items():
                offset = await self._offset(state, queue)
                if offset >= 0 and (_actor_key(subject, queue) in state.known or to > offset):
                    state.remember(_actor_key(subject, queue))
                    self._add_event(Event.MOVED, data, start, subject, queue, to)
        elif kind == Kind.SHARE_HANDED_OVER:
            queue = subscription_queue(subject)
            offset = await self._offset(state, queue)
            for client, _, at in control.ShareHandedOver.parse(payload).handed:
                if at == offset:
                    self._add_event(Event.FINISHED, data, start, subject, queue, offset)
                    self._add_event(Event.SENT, data, start, client, queue, offset)
        elif kind in {Kind.CURSORS_COMMITTED, Kind.OUTBOUND_CHANGED}:
            await self._session_events(state, data, start, kind, subject, payload)
        else:
            self._held_events(state, data, start, kind, payload)

    async def _pop_events(self, state: _TraceState, data: bytes, start: int, group: bytes, payload: bytes) -> None:
        event = control.Popped.parse(payload)
        for queue, runs in event.queues.items():
            offset = await self._offset(state, queue)
            if offset < 0:
                continue
            if _contains(runs, offset):
                state.remember(_actor_key(group, queue))
                self._add_event(Event.LEASED, data, start, group, queue, offset, event.until_ms)
            elif _contains([(first, -count) for first, count in runs], offset):  # it waits for its ordering key
                state.remember(_actor_key(group, queue))
            elif max(first for first, _ in runs) > offset and state.remember(_actor_key(group, queue)):
                self._add_event(Event.PASSED, data, start, group, queue, offset)

    async def _settle_events(self, state: _TraceState, data: bytes, start: int, group: bytes, payload: bytes) -> None:
        event = control.Settled.parse(payload)
        for queue, done in event.done.items():
            offset = await self._offset(state, queue)
            if _contains(done, offset):
                self._add_event(Event.FINISHED, data, start, group, queue, offset)
        for queue, again in event.again.items():
            offset = await self._offset(state, queue)
            for first, count, at in again:
                if first <= offset < first + count:
                    self._add_event(Event.POSTPONED, data, start, group, queue, offset, at)

    async def _session_events(
        self, state: _TraceState, data: bytes, start: int, kind: int, client: bytes, payload: bytes
    ) -> None:
        if kind == Kind.OUTBOUND_CHANGED:
            for _, topic_filter, at, _ in control.OutboundChanged.parse(payload).sent:
                queue = self._queue_of(topic_filter)
                if queue and await self._offset(state, queue) == at:
                    self._add_event(Event.SENT, data, start, client, queue, at)
            return
        for topic_filter, committed in control.CursorsCommitted.parse(payload).offsets.items():
            queue = self._queue_of(topic_filter)
            offset = await self._offset(state, queue) if queue else -1
            if 0 <= offset < committed and state.remember(_actor_key(client, queue)):
                subscriptions = await self._store.subscriptions(client, [topic_filter])
                if topic_filter not in subscriptions or subscriptions[topic_filter].start_position <= state.place:
                    self._add_event(Event.ACKNOWLEDGED, data, start, client, queue, offset)

    def _held_events(self, state: _TraceState, data: bytes, start: int, kind: int, payload: bytes) -> None:
        if not self._is_held:
            return
        if kind == Kind.TIMERS_FIRED and self._handle in control.TimersFired.parse(payload).handles:
            self._add_entered(state, data, start)
        elif kind == Kind.TIMERS_RECALLED and self._handle in control.TimersFired.parse(payload).handles:
            self._add_event(Event.RECALLED, data, start)
        elif kind == Kind.TRANSACTIONS_ENDED:
            ended = control.TransactionsEnded.parse(payload)
            if self._handle in ended.committed:
                self._add_event(Event.COMMITTED, data, start)
                if not self._is_delayed:  # a delayed message enters its queues later
                    state.entered_ms = record.store_time_of(data, start)
                    self._offsets.clear()
            elif self._handle in ended.rolled_back:
                self._add_event(Event.ROLLED_BACK, data, start)

    def _add_entered(self, state: _TraceState, data: bytes, start: int) -> None:
        state.entered_ms = record.store_time_of(data, start)
        self._offsets.clear()
        self._add_event(Event.ENTERED, data, start)

    def _add_event(
        self,
        kind: "Event.Kind",
        data: bytes,
        start: int,
        actor: bytes = b"",
        queue: bytes = b"",
        offset: int = 0,
        until: int = 0,
    ) -> None:
        self._events.append(
            Event(
                kind=kind,
                time_ms=record.store_time_of(data, start),
                position=record.position_of(data, start),
                who=actor.decode(),
                queue=display_name(queue) if queue else "",
                offset=offset,
                until_ms=until,
                member=_member_of(data, start) if kind in _MEMBER_EVENTS else "",
            )
        )

    def _queue_of(self, topic_filter: bytes) -> bytes:
        """The queue of a session's subscription; empty if the subscription does not match the message's topic."""
        inner = split_shared(topic_filter)[1]
        if has_wildcard(inner):
            return filter_queue(inner) if matches(inner, self._topic) else b""
        return topic_queue(inner) if inner == self._topic else b""

    async def _offset(self, state: _TraceState, queue: bytes) -> int:
        """The message's offset in a queue, or -1 if the queue does not have it (yet)."""
        offset = self._offsets.get(queue)
        if offset is None:
            offset = await self._find(state, queue) if self._may_contain(queue) else -1
            self._offsets[queue] = offset
        return offset

    def _may_contain(self, queue: bytes) -> bool:
        name = queue[1:]
        match queue[:1]:
            case b"p":
                return name[:-3] == parent_of(self._topic)
            case b"t":
                return name == self._topic
            case b"f":
                return matches(name, self._topic)
        return True

    async def _find(self, state: _TraceState, queue: bytes) -> int:
        for time_ms in self._times(state, queue):
            at = await self._store.offset_at(queue, time_ms)
            for _ in range(_PAGES):
                fetched = await self._store.bulk.fetch(queue, at, _PAGE, _CHUNK)
                for index, start in enumerate(record.split(fetched.data)):
                    if record.position_of(fetched.data, start) == state.place:
                        return fetched.offset + index
                at = fetched.next_offset
                if not fetched.count:
                    break
        return -1

    def _times(self, state: _TraceState, queue: bytes) -> Iterator[int]:
        """The times (ms) at which the message may have entered a queue."""
        if queue[:1] != b"d":
            if state.entered_ms:
                yield state.entered_ms
            return
        for known in state.known:
            fact, _, rest = known.partition(" ")
            time_ms, _, group = rest.partition(" ")
            if fact == "dead" and dead_letter_queue(group.encode()) == queue:
                yield int(time_ms)


def _unpacked(after: bytes) -> _TraceState:
    try:
        position, place, entered_ms, known = orjson.loads(after)
        if not all(isinstance(number, int) and number >= 0 for number in (position, place, entered_ms)):
            raise ValueError("numbers are expected")
        return _TraceState(position, place, entered_ms, [str(name) for name in known[:_MAX_KNOWN]])
    except (ValueError, TypeError) as error:
        raise invalid(f"`after` does not come from a reply: {error}") from error


def _member_of(data: bytes, start: int) -> str:
    """The member of a group that a POPPED, SETTLED or DEAD_LETTERED record names."""
    return record.decode(data, start)[4].decode(errors="replace")


def _contains(runs: list[tuple[int, int]], offset: int) -> bool:
    return any(first <= offset < first + count for first, count in runs)


def _actor_key(subject: bytes, queue: bytes) -> str:
    kind = "share" if is_shared(subject) else "who"
    return f"{kind} {subject.decode()} {display_name(queue)}"


def _partition(topic: bytes, partition: int) -> bytes:
    return b"p%b\0%b" % (parent_of(topic), partition.to_bytes(2, "big"))
