"""One shared subscription (MQTT 5.0 section 4.8.2) at this node: a group that pops, and its members.

What is owed to the group is in the store: where it is, what is leased out, how often. The rules of the file:

* A message goes to one member. Members with room stand in a line; who got one goes to its end. Who is slow, or away,
  stands in no line.
* Nothing is popped that nobody has room for. What lost its taker meanwhile waits here, leased, and is bounded. So is
  what only members take that have no room: beyond that it comes again later, and where these are silent as if it had
  been tried, in the end as a dead letter.
* A message goes out before its lease is on disk: a crash just then forgets that it did, and it comes again.
* A member that leaves gives back at once. One that keeps what it has and acknowledges nothing for a while is *silent*:
  where there are others, they get it. Leases are renewed here, so in the store they run out only with the node.
"""

import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from time import time
from typing import Final, Protocol

from gateway.observe.counters import Counters
from gateway.observe.throttled_log import tell_failure
from gateway.session.inflight import RESERVED
from gateway.session.message_encoding import Message
from gateway.session.session import Session
from gateway.shared.member import Leased, Member
from gateway.shared.parked import Aside, Waiting
from gateway.shared.ready_queue import Line
from record import split
from store.api import Handed, PopRequest, Receipts, Run, Start, Store, subscription_queue
from store.errors import StoreBusy, StoreError

log = logging.getLogger(__name__)

MAX_POP: Final = 512  # messages, in one pop
_POP_BYTES: Final = 256 * 1024
_SETTLE_AT: Final = 4096  # acknowledged messages that wait for their record
ROUNDS: Final = 4  # of silence until a member is silent
_PATIENCE: Final = 4 * ROUNDS  # with silent members, for what they alone take


class Hub(Protocol):
    """What a group needs of its node."""

    store: Store
    counters: Counters
    gateway: bytes  # b"": the process of the store itself, which has no others beside it
    lease_ms: int
    round: int  # counts the ticks

    def spawn(self, coroutine: Coroutine[object, None, None]) -> None: ...

    def settle_soon(self, share: "Share") -> None:
        """Have `Share.flush` called in a moment."""

    def wake_later(self, share: "Share") -> None:
        """Have `Share.wake` called when the store may be less busy."""

    def drop(self, share: "Share") -> None:
        """The group has neither members nor messages out."""


class _Handing:
    """A message of QoS 2 on its way to become its session's."""

    __slots__ = ("entry", "message", "packet_id")

    def __init__(self, entry: Leased, message: Message, packet_id: int) -> None:
        self.entry = entry
        self.message = message
        self.packet_id = packet_id


class Share:
    """A group with members at this node. `name` is its filter, `$share/…`."""

    def __init__(self, hub: Hub, name: bytes) -> None:
        self._hub = hub
        self.name = name
        self.queue = subscription_queue(name)
        self.members: dict[Session, Member] = {}
        self.is_begun = False  # the log knows of it
        self._is_clear = False  # what an earlier process of the node had out is to be had again
        self._line = Line()  # members that had room when they were last looked at
        self._able = Line()  # members that are not silent
        self._silent = Line()  # members that are
        self._waiting: deque[Waiting] = deque()
        self._aside = Aside()  # the same, that nobody took who had room
        self._handing: list[_Handing] = []
        self._out: dict[int, Leased] = {}  # by offset
        self._done: dict[int, list[int]] = {}  # acknowledged offsets, by deliveries
        self._done_count = 0
        self._popping = False
        self._nudged = False  # something may have come since the last pop began
        self._is_limited = False  # the group has as much out as it may
        self._look_at = 0  # ms: when the store has something again by itself; 0: it did not say

    # --- members

    def add(self, member: Member) -> None:
        member.heard = self._hub.round
        self.members[member.session] = member
        (self._silent if member.is_silent else self._able).add(member)
        self.line_up(member)

    def remove(self, member: Member) -> None:
        """No more messages for it; what it has it may still acknowledge."""
        member.has_left = True
        del self.members[member.session]
        self._forget_member(member)
        if not self.members:
            self.is_begun = False  # who joins next may begin it anew
            self.flush()
            self._give_back(())
        elif self._waiting or self._aside.items:
            self._look_again(None)  # what waited for this one may be too large for the others

    def change(self, member: Member, qos: int, identifiers: tuple[int, ...], retain_as_published: bool) -> None:
        """A member subscribed again: it goes on with other options."""
        self._forget_member(member)
        member.grant(qos, identifiers, retain_as_published)
        (self._silent if member.is_silent else self._able).add(member)
        self.line_up(member)

    def _forget_member(self, member: Member) -> None:
        (self._silent if member.is_silent else self._able).remove(member)
        if member.is_ready:
            self._step_out(member)

    def _hear(self, member: Member, is_silent: bool) -> None:
        """A member is silent from now on, or is so no more."""
        if is_silent != member.is_silent:
            member.is_silent = is_silent
            if not member.has_left:
                (self._able if is_silent else self._silent).remove(member)
                (self._silent if is_silent else self._able).add(member)

    @property
    def is_empty(self) -> bool:
        """Whether there are neither members nor messages out, nor any on their way."""
        return not (self.members or self._out or self._popping)

    def line_up(self, member: Member) -> None:
        """A member may have room: it gets what waits here, and what there is in the store."""
        if member.has_room:
            member.is_ready = True
            self._line.add(member)
            if self._waiting or self._aside.items:
                self._look_again(member)
            self.wake()
        elif not member.session.has_room:
            member.session.wait_for_room()

    def lost(self, entries: list[Leased]) -> None:
        """The connection of who had these is over: others get them."""
        self._give_back(entries)

    # --- messages out

    def wake(self) -> None:
        """There may be messages."""
        self._nudged = True
        if not self._popping and self.is_begun and self._has_taker():
            self._begin()

    def _begin(self) -> None:
        if not self._popping:
            self._popping = True
            self._hub.spawn(self._work())

    def _has_taker(self) -> bool:
        """Whether somebody has room; forgets those who have none."""
        while (member := self._line.first()) is not None:
            if member.has_room:
                return len(self._waiting) < MAX_POP
            self._step_out(member)
        return False

    def _step_out(self, member: Member) -> None:
        self._line.remove(member)
        member.is_ready = False
        if not member.session.has_room:
            member.session.wait_for_room()

    def _room(self) -> int:
        """Messages that the line takes, as far as it needs to be known."""
        return max(1, min(self._line.room(MAX_POP), MAX_POP) - len(self._waiting))

    async def _work(self) -> None:
        """Pop as long as there is something and somebody has room; what has to be handed over goes first."""
        try:
            await self._hand_over()
            while (self._nudged or self._is_due()) and self._has_taker():
                await self._pop()
                await self._hand_over()
        except StoreBusy:
            self._hub.wake_later(self)
        except StoreError as error:
            tell_failure(log, error, "messages of %r cannot be had: %s", self.name)
            self._look_at = 1
        finally:
            self._popping = False
        if self._handing:  # since the store failed
            self._begin()
        if self._is_limited:
            self.flush()
        if self.is_empty:
            self._hub.drop(self)

    async def _pop(self) -> None:
        store = self._hub.store
        if not self._is_clear:
            if not self._hub.gateway:  # else the store sees to it
                await store.release_leases(self.name, self.queue)
            self._is_clear = True
        self._nudged = False
        if not self.members:
            return  # they left meanwhile, and the group may be over
        hub, room = self._hub, self._room()
        request = PopRequest(
            self.name, (self.queue,), room, _POP_BYTES, hub.lease_ms, Start.LATEST, owner=hub.gateway, early=True
        )
        popped = await store.pop(request)
        hub.counters.dropped_reclaimed += popped.reclaimed
        self._nudged = self._nudged or popped.is_full
        self._look_at = popped.available_at or 0
        self._is_limited = popped.is_limited
        self._take(popped.runs)

    def _is_due(self) -> bool:
        return 0 < self._look_at <= time() * 1000

    def _take(self, runs: list[Run]) -> None:
        """What was leased from the store."""
        now = self._hub.round
        if runs and (self._waiting or self._aside.items):
            self._drop_old(runs)
        for run in runs:
            offset = run.offset
            for start in split(run.data):
                held = self._out.get(offset)
                if held is not None:  # its lease ran out all the same
                    self._forget(held)
                    held.uncount()
                self._waiting.append(Waiting(Message(run.data, start), offset, run.deliveries, now))
                offset += 1
        if not self.members:
            self._give_back(())
        elif runs:
            self._assign()

    def _drop_old(self, runs: list[Run]) -> None:
        """Of what waits here and was leased anew, because its lease ran out all the same, only the later counts."""
        anew = {offset for run in runs for offset in range(run.offset, run.offset + run.count)}
        self._waiting = deque(item for item in self._waiting if item.offset not in anew)
        self._aside.drop(anew)

    def _assign(self) -> None:
        """Give what waits to the members that stand in line."""
        now_ms = int(time() * 1000)
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            item = waiting.popleft()
            if item.message.expires_at and item.message.expired(now_ms):
                self._hub.counters.dropped_expired += 1
                self._finish(item.offset, item.deliveries)
                continue
            member = self._next(item.message, now_ms)
            if member is not None:
                self._give(member, item, now_ms)
            elif self._line.is_empty:
                self._waiting.append(item)
                self._waiting.extend(waiting)
                return
            elif self._is_too_large(item.message, now_ms):
                self._hub.counters.dropped_oversized += 1
                self._finish(item.offset, item.deliveries)
            else:
                self._aside.add(item, now_ms)
        self._put_off(self._aside.take_excess(), now_ms)

    def _look_again(self, member: Member | None) -> None:
        """Give out what waits, now that this member takes some, or since others have to."""
        self._waiting.extend(self._aside.take(member, int(time() * 1000)))
        if self._waiting:
            self._assign()

    def _put_off(self, items: list[Waiting], now_ms: int) -> None:
        """Have what nobody takes who has room come again later: as if it had been tried, where only silent members
        take it, of whom nobody knows whether they ever will."""
        if not items:
            return
        unsent: dict[int, list[int]] = {}
        again: dict[int, list[int]] = {}
        for item in items:
            some = again if self._able.first(item.message, now_ms) is None else unsent
            some.setdefault(item.deliveries, []).append(item.offset)
        by_tries: int | None = None
        later_ms = self._hub.lease_ms // 2
        self._hub.spawn(
            self._settle(
                again=[(each, by_tries) for each in _receipts(self.queue, again)],
                unsent=[(each, later_ms) for each in _receipts(self.queue, unsent)],
            )
        )

    def _next(self, message: Message, now_ms: int) -> Member | None:
        """Who is next in line and takes the message."""
        while (member := self._line.first(message, now_ms)) is not None:
            if member.has_room:
                self._line.to_end(member)
                return member
            self._step_out(member)
        return None

    def _is_too_large(self, message: Message, now_ms: int) -> bool:
        """Whether no member takes it. Who is silent may be heard of again: the message waits for it."""
        return self._able.first(message, now_ms) is None and self._silent.first(message, now_ms) is None

    def _give(self, member: Member, item: Waiting, now_ms: int) -> None:
        message, session = item.message, member.session
        qos = min(member.qos, message.qos)
        retain = message.retain and member.retain_as_published
        self._hub.counters.shared_sent += 1
        if qos == 0:
            session.send(message, 0, retain, False, member.identifiers, None, now_ms)
            self._finish(item.offset, item.deliveries)
            return
        entry = Leased(member, item.offset, qos, item.deliveries, item.renewed)
        self._out[item.offset] = entry
        if not member.out:
            member.heard = self._hub.round
        member.out += 1
        if qos == 1:
            session.send(message, 1, retain, False, member.identifiers, entry, now_ms)
        else:
            self._handing.append(_Handing(entry, message, session.reserve(entry)))
            self._begin()

    async def _hand_over(self) -> None:
        """Have the log know whose the messages are, then send them."""
        while self._handing:
            handing = [each for each in self._handing if not each.entry.member.session.closed]
            self._handing = []
            wanted = []
            for each in handing:
                session = each.entry.member.session
                packet_id = each.packet_id if session.durable else 0
                wanted.append(Handed(each.entry.offset, each.entry.deliveries, session.client_id, packet_id))
            refused: Iterable[int] = [each.offset for each in wanted]
            try:
                refused = await self._hub.store.hand_over(self.name, wanted)
            finally:
                self._handed(handing, set(refused))

    def _handed(self, handing: list[_Handing], refused: set[int]) -> None:
        """Send what was handed over; what was not is given back."""
        now_ms = int(time() * 1000)
        for each in handing:
            if each.entry.offset not in refused:
                self._send(each, now_ms)
        lost = [each for each in handing if each.entry.offset in refused]
        self._give_back([each.entry for each in lost])
        for each in lost:
            each.entry.member.session.cancel_reserved(each.packet_id)

    def _send(self, handed: _Handing, now_ms: int) -> None:
        """Send a message that is its session's by now."""
        entry, message, member = handed.entry, handed.message, handed.entry.member
        session = member.session
        if entry.is_held:
            self._forget(entry)
        if session.closed:
            return
        retain = message.retain and member.retain_as_published
        session.send_reserved(handed.packet_id, entry, message, retain, member.identifiers, now_ms)

    # --- acknowledgements in

    def acknowledged(self, entry: Leased) -> None:
        """The exchange of a message is over, whatever its reason code says (MQTT-4.8.2-6)."""
        member = entry.member
        entry.uncount()
        if entry.is_held:
            self._finish(entry.offset, entry.deliveries)
            self._forget(entry)
        member.heard = self._hub.round
        self._hear(member, False)
        if not member.is_ready and not member.has_left and member.out <= member.limit >> 1:
            self.line_up(member)

    def _forget(self, entry: Leased) -> None:
        """The group is through with what the member has there."""
        entry.is_held = False
        if self._out.get(entry.offset) is entry:
            del self._out[entry.offset]
        if self.is_empty:
            self._hub.drop(self)

    def _finish(self, offset: int, deliveries: int) -> None:
        done = self._done.get(deliveries)
        if done is None:
            done = self._done[deliveries] = []
        done.append(offset)
        if not self._done_count:
            self._hub.settle_soon(self)
        self._done_count += 1
        if self._done_count >= _SETTLE_AT:
            self.flush()

    def flush(self) -> None:
        """Have the store know what is finished."""
        if not self._done_count:
            return
        receipts = _receipts(self.queue, self._done)
        self._done = {}
        self._done_count = 0
        self._hub.spawn(self._settle(receipts))

    def _give_back(self, entries: Iterable[Leased]) -> None:
        """Have messages be leased out to others; without members also those that wait here."""
        lost: dict[int, list[int]] = {}
        unsent: dict[int, list[int]] = {}
        for entry in entries:
            if entry.is_held:
                some = unsent if entry.phase == RESERVED else lost
                some.setdefault(entry.deliveries, []).append(entry.offset)
                self._hub.counters.shared_returned += 1
                self._forget(entry)
                entry.uncount()
        if not self.members:
            for item in (*self._waiting, *self._aside.items):
                unsent.setdefault(item.deliveries, []).append(item.offset)
            self._waiting.clear()
            self._aside.take(None, 0)
        if lost or unsent:
            at_once: int | None = 0
            again = [(each, at_once) for each in _receipts(self.queue, lost)]
            self._hub.spawn(self._settle(again=again, unsent=[(each, 0) for each in _receipts(self.queue, unsent)]))

    async def _settle(
        self,
        done: Sequence[Receipts] = (),
        again: Sequence[tuple[Receipts, int | None]] = (),
        unsent: Sequence[tuple[Receipts, int]] = (),
    ) -> None:
        try:
            await self._hub.store.settle(self.name, done, again, unsent)
        except StoreError as error:
            tell_failure(log, error, "messages of %r cannot be settled: %s", self.name)
        if again or unsent or self._is_limited:
            self.wake()

    # --- the clock

    def tick(self) -> None:
        """A round is over: take what silent members have, renew the other leases, pop what came again by itself."""
        now = self._hub.round
        self._listen(now)
        for member in list(self.members.values()):
            member.resume()
        if self._out or self._waiting or self._aside.items:
            self._keep(now)
        if self._is_due():
            self.wake()

    def _keep(self, now: int) -> None:
        """See to what is leased."""
        now_ms = int(time() * 1000)
        for item in self._aside.take_older(now, _PATIENCE):
            if self._able.first(item.message, now_ms) is None:
                self._put_off([item], now_ms)
            else:
                self._aside.add(item, now_ms)
        taken: list[Leased] = []
        renewed: dict[int, list[int]] = {}
        for entry in self._out.values():
            if entry.phase == RESERVED:  # its lease ends as it is handed over
                continue
            member = entry.member
            has_left = member.has_left and now - member.heard > ROUNDS
            if has_left or (member.is_silent and self.members):
                taken.append(entry)
            elif now - entry.renewed >= ROUNDS // 2:
                entry.renewed = now
                renewed.setdefault(entry.deliveries, []).append(entry.offset)
        for item in (*self._waiting, *self._aside.items):
            if now - item.renewed >= ROUNDS // 2:
                item.renewed = now
                renewed.setdefault(item.deliveries, []).append(item.offset)
        if renewed:
            lease_ms: int | None = self._hub.lease_ms
            again = [(each, lease_ms) for each in _receipts(self.queue, renewed)]
            self._hub.spawn(self._settle(again=again))
        if taken:
            self._give_back(taken)

    def _listen(self, now: int) -> None:
        """Find out who is silent: never the only one."""
        for member in self.members.values():
            if len(self.members) == 1:
                self._hear(member, False)
            elif member.out and now - member.heard > ROUNDS:
                self._hear(member, True)


def _receipts(queue: bytes, offsets: dict[int, list[int]]) -> list[Receipts]:
    """What settles messages of a queue, whose offsets are given by deliveries."""
    found: list[Receipts] = []
    for deliveries, each in offsets.items():
        last: Receipts | None = None
        for offset in sorted(each):
            if last is not None and last.offset + last.count == offset:
                last.count += 1
            else:
                last = Receipts(queue, offset, 1, deliveries)
                found.append(last)
    return found
