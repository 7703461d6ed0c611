"""One shared subscription (MQTT 5.0 section 4.8.2) at this node: a consumer group whose members are sessions.

The store has the group's position, its leases and its delivery counts. The rules of this file:

* Each message goes to one member. Members with room are in the ready queue and take turns.
* The group pops no more than its members have room for. A popped message for which no member has room any more waits
  here until the next tick and then goes back to the store, not counted as delivered.
* A member gets no packet that is larger than it accepts (MQTT-3.1.2-24). The message goes to one of the next ready
  members. If none of them accepts it, it becomes a dead letter of the group.
* A message with QoS 1 is sent before its lease is on disk. After a crash it is sent again.
* A message with QoS 2 is handed over before it is sent: one record ends its lease and makes it the session's own, for
  this client and no other (MQTT-4.8.2-4, -5).
* If the log fails meanwhile, nobody knows whether it has the record. The member's connection is closed. When the store
  has been started again and the client is back, its session has what the log says.
* A member that leaves gives back what it has when its connection ends. A member that acknowledges nothing for
  `mqtt.shared_ack_timeout` is *silent*: others get what it has, unless it is the only member.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from time import time
from typing import Final

from gateway.observe.counters import Counters
from gateway.observe.throttled_log import log_failure
from gateway.session.message_encoding import Message
from gateway.session.session import Session
from gateway.shared.leases import TICKS, LeasedMessage, Leases, Offsets
from gateway.shared.member import SharedMember
from record import split
from store.api import GroupStore, Handed, PopRequest, Start
from store.errors import StoreBusy, StoreError, StoreFailed, TierUnavailable

log = logging.getLogger(__name__)

_MAX_POP: Final = 512  # messages in one pop
_MAX_POP_BYTES: Final = 256 * 1024
_BUSY_SECONDS: Final = 0.05  # until a busy store is asked again
_MAX_ASKED: Final = 32  # ready members, when a message is too large for the next one


class _Waiting:
    """A leased message for which no member had room."""

    __slots__ = ("deliveries", "message", "offset")

    def __init__(self, message: Message, offset: int, deliveries: int) -> None:
        self.message = message
        self.offset = offset  # in the group's queue
        self.deliveries = deliveries  # this one included


class _Reserved:
    """A message with QoS 2 that has its packet id and is to be handed over to its session."""

    __slots__ = ("leased", "message", "packet_id")

    def __init__(self, leased: LeasedMessage, message: Message, packet_id: int) -> None:
        self.leased = leased
        self.message = message
        self.packet_id = packet_id


class SharedGroup:
    """A group with members at this node. `name` is the whole filter, `$share/…`; `gateway` owns the leases."""

    def __init__(
        self,
        name: bytes,
        store: GroupStore,
        counters: Counters,
        gateway: bytes,
        lease_ms: int,
        tasks: set[asyncio.Task[None]],
        on_failed: Callable[[Session, StoreError], None],
    ) -> None:
        """on_failed: closes the connection of a session whose state the log may not have."""
        self.name = name
        self.members: dict[Session, SharedMember] = {}
        self.leases = Leases(store, name, lease_ms, counters, tasks, self.wake)
        self.is_begun: bool = False  # the log knows the group
        self.is_queued: bool = False  # it waits in the `WakeQueue`
        self._store = store
        self._counters = counters
        self._gateway = gateway
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._ready: OrderedDict[SharedMember, None] = OrderedDict()  # members that may have room, in turn
        self._waiting: deque[_Waiting] = deque()
        self._reserved: list[_Reserved] = []
        self._is_working: bool = False
        self._is_released: bool = False  # an earlier process of this node has no leases any more
        self._has_more: bool = False  # something may have come since the last pop began
        self._due_ms: int = 0  # when the store has something again by itself; 0: not known

    # --- members

    def join(
        self, session: Session, qos: int, identifiers: tuple[int, ...], retain_as_published: bool, limit: int
    ) -> SharedMember:
        """Add a member that gets up to `limit` messages at a time."""
        member = self.members[session] = SharedMember(session, limit, self._make_ready)
        member.grant(qos, identifiers, retain_as_published)
        member.heard = self.leases.now
        self._has_more = True
        self._make_ready(member)
        return member

    def leave(self, session: Session) -> None:
        """Remove a member. It may still acknowledge what it has."""
        member = self.members.pop(session)
        member.has_left = True
        self._remove_ready(member)
        if not self.members:
            self.is_begun = False  # the next member may begin it anew
            self.leases.flush()
            self._return_waiting()

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, no messages in flight and no pop under way."""
        return not (self.members or self.leases.in_flight or self._is_working)

    def _make_ready(self, member: SharedMember) -> None:
        """Put a member into the ready queue if it has room."""
        if member.room:
            member.is_ready = True
            self._ready[member] = None
            if self._waiting:
                self._give_out_waiting()
            self._start_popping()
        elif not member.session.exchanges.has_room:
            member.session.wait_for_room()

    def _remove_ready(self, member: SharedMember) -> None:
        if member.is_ready:
            member.is_ready = False
            del self._ready[member]
            if not member.session.exchanges.has_room:
                member.session.wait_for_room()

    def _next_ready(self) -> SharedMember | None:
        """The first ready member. Removes those that have no room any more."""
        while self._ready:
            member = next(iter(self._ready))
            if member.room:
                return member
            self._remove_ready(member)
        return None

    def _room(self) -> int:
        """How many messages the ready members take together, up to the limit of one pop."""
        room = 0
        for member in self._ready:
            room += member.room
            if room >= _MAX_POP:
                return _MAX_POP
        if not room:
            self._next_ready()  # all of them leave the ready queue
        return room

    # --- messages out

    def wake(self) -> None:
        """Get the messages that have come to the group's queue, if members have room."""
        self._has_more = True
        self._start_popping()

    def _start_popping(self) -> None:
        if self.is_begun and self._has_more and self._ready:
            self._start_work()

    def _start_work(self) -> None:
        if not self._is_working:
            self._is_working = True
            self.leases.start(self._work())

    async def _work(self) -> None:
        """Hand over and pop until there is nothing to do."""
        try:
            while True:
                if self._reserved:
                    await self._hand_over()
                elif self._has_more and (room := self._room()):
                    await self._pop(room)
                else:
                    break
        except (StoreBusy, TierUnavailable):
            self._loop.call_later(_BUSY_SECONDS, self.wake)
        except StoreError as error:
            log_failure(log, error, "messages of %r cannot be had: %s", self.name)
            self._due_ms = 1
        finally:
            self._is_working = False
            if self._reserved:  # since the store failed
                self._start_work()

    async def _pop(self, room: int) -> None:
        """Lease up to `room` messages and give them out."""
        if not self._is_released:
            if not self._gateway:  # the store itself notices the end of a gateway
                await self._store.release_leases(self.name, self.leases.queue)
            self._is_released = True
            return  # meanwhile the members may have left, and the group may be gone
        self._has_more = False
        leases = self.leases
        request = PopRequest(
            self.name,
            (leases.queue,),
            room,
            _MAX_POP_BYTES,
            leases.lease_ms,
            Start.LATEST,
            owner=self._gateway,
            early=True,
        )
        popped = await self._store.pop(request)
        self._counters.dropped_reclaimed += popped.reclaimed
        self._has_more = self._has_more or popped.is_full
        self._due_ms = popped.available_at or 0
        leases.is_limited = popped.is_limited
        now_ms = int(time() * 1000)
        for run in popped.runs:
            offset = run.offset
            for start in split(run.data):
                message = Message(run.data, start)
                if not self._give_out(message, offset, run.deliveries, now_ms):
                    self._waiting.append(_Waiting(message, offset, run.deliveries))
                offset += 1
        if self._waiting and not self.members:
            self._return_waiting()
        if popped.is_limited:
            leases.flush()

    def _give_out_waiting(self) -> None:
        """Give waiting messages to ready members."""
        now_ms = int(time() * 1000)
        while self._waiting:
            waiting = self._waiting.popleft()
            if not self._give_out(waiting.message, waiting.offset, waiting.deliveries, now_ms):
                self._waiting.appendleft(waiting)
                return

    def _give_out(self, message: Message, offset: int, deliveries: int, now_ms: int) -> bool:
        """Give a message to the next ready member that accepts it. False: no member has room."""
        member = self._next_ready()
        if member is None:
            return False
        if message.expires_at and message.expired(now_ms):
            self._counters.dropped_expired += 1
            self.leases.finish(offset, deliveries)
            return True
        self._ready.move_to_end(member)
        if member.maximum and not member.accepts(message, now_ms):
            member = self._accepting(message, now_ms)
            if member is None:
                self._counters.dropped_oversized += 1
                self.leases.reject(offset, deliveries)
                return True
        session = member.session
        qos = min(member.qos, message.qos)
        retain = message.retain and member.retain_as_published
        self._counters.shared_sent += 1
        if qos == 0:
            session.exchanges.send(message, 0, retain, False, member.identifiers, None, now_ms)
            self.leases.finish(offset, deliveries)
            return True
        leased = self.leases.give(member, offset, deliveries, qos)
        if qos == 1:
            session.exchanges.send(message, 1, retain, False, member.identifiers, leased, now_ms)
        else:
            self._reserved.append(_Reserved(leased, message, session.exchanges.reserve(leased)))
            self._start_work()
        return True

    def _accepting(self, message: Message, now_ms: int) -> SharedMember | None:
        """The first of the next few ready members that accepts the message. All that were asked have had their turn."""
        for _ in range(min(_MAX_ASKED, len(self._ready))):
            member = self._next_ready()
            if member is None:
                break
            self._ready.move_to_end(member)
            if member.accepts(message, now_ms):
                return member
        return None

    async def _hand_over(self) -> None:
        """Record which sessions own the reserved messages, then send them. What the store refuses is given back."""
        reserved = [each for each in self._reserved if not each.leased.member.session.closed]
        self._reserved = []
        handed = []
        for each in reserved:
            session = each.leased.member.session
            packet_id = each.packet_id if session.durable else 0
            handed.append(Handed(each.leased.offset, each.leased.deliveries, session.client_id, packet_id))
        refused: Iterable[int] = [each.offset for each in handed]
        failure: StoreError | None = None
        try:
            refused = await self._store.hand_over(self.name, handed)
        except StoreFailed as error:
            failure = error
            raise
        finally:
            self._send_handed(reserved, set(refused))
            if failure is not None:
                for each in reserved:
                    self._on_failed(each.leased.member.session, failure)

    def _send_handed(self, reserved: list[_Reserved], refused: set[int]) -> None:
        now_ms = int(time() * 1000)
        self.leases.give_back([each.leased for each in reserved if each.leased.offset in refused])
        for each in reserved:
            leased, message, member = each.leased, each.message, each.leased.member
            if leased.offset in refused:
                member.in_flight -= 1
                member.session.exchanges.cancel_reserved(each.packet_id)
                continue
            self.leases.handed_over(leased)
            session = member.session
            if not session.closed:
                retain = message.retain and member.retain_as_published
                session.exchanges.send_reserved(each.packet_id, leased, message, retain, member.identifiers, now_ms)

    def _return_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        offsets: Offsets = {}
        for each in waiting:
            offsets.setdefault(each.deliveries, []).append(each.offset)
        self.leases.return_unsent(offsets)

    # --- the clock

    def tick(self, now: int) -> None:
        """Find silent members, renew leases and pop what came due: called `TICKS` times in the timeout."""
        self.leases.now = now
        is_only = len(self.members) == 1
        for member in list(self.members.values()):
            member.is_silent = not is_only and member.in_flight > 0 and now - member.heard > TICKS
            member.resume()
        if self._waiting:
            self._return_waiting()
        if self.leases.in_flight:
            self.leases.tick()
        if 0 < self._due_ms <= time() * 1000:
            self.wake()
