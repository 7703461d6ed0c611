"""The leases of one shared subscription at this node: which member has which message, and what became of it.

Background tasks settle the leases in the store. There they last twice `mqtt.shared_ack_timeout`. They are renewed from
here, so they run out only when the node is gone. If the store cannot take sent messages back, it is asked again until
their leases end there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Final

from gateway.observe.counters import Counters
from gateway.observe.throttled_log import log_failure
from gateway.session.inflight import RESERVED, Inflight
from gateway.shared.member import SharedMember
from store.api import DeadLetterReason, GroupStore, Receipts, subscription_queue
from store.errors import StoreError

log = logging.getLogger(__name__)

TICKS: Final = 4  # in `mqtt.shared_ack_timeout`
_RENEWAL_TICKS: Final = 2
# Acknowledgements of this long are recorded together. The store holds back the records of leases for a little longer
# (`PopRequest.early`), so a lease and its acknowledgement share a commit if there is no other.
_SETTLE_SECONDS: Final = 0.08
_RETURN_SECONDS: Final = 0.5  # until messages are given back again that the store did not take; then twice as long

Offsets = dict[int, list[int]]  # of messages in the group's queue, by their number of deliveries


class LeasedMessage(Inflight):
    """A message that a member has, until its client acknowledges it."""

    __slots__ = ("deliveries", "leases", "member")

    def __init__(self, leases: "Leases", member: SharedMember, offset: int, deliveries: int, qos: int) -> None:
        super().__init__(None, leases.group, offset, qos)
        self.leased = True
        self.leases = leases
        self.member = member
        self.deliveries = deliveries  # this one included

    def acknowledged(self) -> bool:
        """End the exchange. A message that the client refused is finished too (MQTT-4.8.2-6)."""
        member, leases = self.member, self.leases
        member.in_flight -= 1
        member.heard = leases.now
        member.is_silent = False
        if leases.in_flight.get(self.offset) is self:
            del leases.in_flight[self.offset]
            leases.finish(self.offset, self.deliveries)
        if not member.is_ready and member.in_flight <= member.limit >> 1:
            member.on_room(member)
        return False


class Leases:
    """What a group has leased. `on_returned` is called when the store may have messages for the group again."""

    def __init__(
        self,
        store: GroupStore,
        group: bytes,
        lease_ms: int,
        counters: Counters,
        tasks: set[asyncio.Task[None]],
        on_returned: Callable[[], None],
    ) -> None:
        self.group = group
        self.queue = subscription_queue(group)
        self.lease_ms = lease_ms
        self.in_flight: dict[int, LeasedMessage] = {}  # by offset: what members have and may acknowledge
        self.now: int = 0  # the number of the last tick
        self.is_limited: bool = False  # the store leases out no more before something is settled
        self._store = store
        self._counters = counters
        self._tasks = tasks
        self._on_returned = on_returned
        self._loop = asyncio.get_running_loop()
        self._finished: Offsets = {}
        self._dead: Offsets = {}
        self._timer: asyncio.TimerHandle | None = None

    def detach(self) -> None:
        """Call `on_returned` no more: its group has ended, and could not be freed without a garbage collection."""
        self._on_returned = _ignore

    def start(self, coroutine: Coroutine[object, None, None]) -> None:
        """Run a task that the node waits for when it stops."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def give(self, member: SharedMember, offset: int, deliveries: int, qos: int) -> LeasedMessage:
        """Note that a member gets a message with QoS 1 or 2."""
        leased = LeasedMessage(self, member, offset, deliveries, qos)
        self.in_flight[offset] = leased
        if not member.in_flight:
            member.heard = self.now
        member.in_flight += 1
        return leased

    def finish(self, offset: int, deliveries: int) -> None:
        """Tell the store soon that a message is done."""
        finished = self._finished.get(deliveries)
        if finished is None:
            finished = self._finished[deliveries] = []
        finished.append(offset)
        if self._timer is None:
            self._timer = self._loop.call_later(_SETTLE_SECONDS, self.flush)

    def reject(self, offset: int, deliveries: int) -> None:
        """Have the store soon make a message a dead letter of the group, because it is too large for the members."""
        self._dead.setdefault(deliveries, []).append(offset)
        if self._timer is None:
            self._timer = self._loop.call_later(_SETTLE_SECONDS, self.flush)

    def flush(self) -> None:
        """Tell the store now which messages are done, and which are dead letters."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self._finished:
            finished, self._finished = self._finished, {}
            self.start(self._settle(done=_receipts(self.queue, finished)))
        if self._dead:
            dead, self._dead = self._dead, {}
            self.start(self._dead_letter(_receipts(self.queue, dead)))

    def handed_over(self, leased: LeasedMessage) -> None:
        """Remove a message that has become its session's own."""
        if self.in_flight.get(leased.offset) is leased:
            del self.in_flight[leased.offset]
        if self.is_limited:
            self._on_returned()

    def give_back(self, messages: Iterable[LeasedMessage]) -> None:
        """Have messages go to other members. Those that were not sent yet do not count as delivered."""
        sent: Offsets = {}
        unsent: Offsets = {}
        for leased in messages:
            if self.in_flight.get(leased.offset) is leased:
                del self.in_flight[leased.offset]
                returned = unsent if leased.phase == RESERVED else sent
                returned.setdefault(leased.deliveries, []).append(leased.offset)
                self._counters.shared_returned += 1
        self._return(sent, unsent)

    def return_unsent(self, offsets: Offsets) -> None:
        """Give back messages that no member has got. They do not count as delivered."""
        self._return({}, offsets)

    def tick(self) -> None:
        """Take back what silent members have, and what members that left do not finish. Renew the other leases."""
        now = self.now
        is_renewal = now % _RENEWAL_TICKS == 0
        lost: list[LeasedMessage] = []
        renewed: Offsets = {}
        for leased in self.in_flight.values():
            member = leased.member
            if leased.phase == RESERVED:
                continue  # its lease ends when it is handed over
            if member.is_silent or (member.has_left and now - member.heard > TICKS):
                lost.append(leased)
            elif is_renewal:
                renewed.setdefault(leased.deliveries, []).append(leased.offset)
        if renewed:
            self.start(self._settle(again=[(each, self.lease_ms) for each in _receipts(self.queue, renewed)]))
        self.give_back(lost)

    def _return(self, sent: Offsets, unsent: Offsets) -> None:
        if sent or unsent:
            again = [(each, 0) for each in _receipts(self.queue, sent)]
            never_sent = [(each, 0) for each in _receipts(self.queue, unsent)]
            self.start(self._give_back(again, never_sent, _RETURN_SECONDS))

    async def _give_back(
        self, again: Sequence[tuple[Receipts, int]], unsent: Sequence[tuple[Receipts, int]], pause: float
    ) -> None:
        """Have the store lease messages to others. `pause`: seconds until it is asked again, if that fails.

        The store may have taken them back all the same, and leased them to others. What was sent has another number of
        deliveries then. What was not has the same, so it is not given back twice: it waits for the end of its lease.
        """
        try:
            await self._store.settle(self.group, (), again, unsent)
        except StoreError as error:
            if again and 1000 * pause < self.lease_ms:  # all pauses before this one are shorter together
                self._loop.call_later(pause, self._give_back_again, again, 2 * pause)
            else:
                log_failure(log, error, "messages of %r cannot be settled: %s", self.group)
        self._on_returned()

    def _give_back_again(self, again: Sequence[tuple[Receipts, int]], pause: float) -> None:
        self.start(self._give_back(again, (), pause))

    async def _settle(self, done: Sequence[Receipts] = (), again: Sequence[tuple[Receipts, int]] = ()) -> None:
        try:
            await self._store.settle(self.group, done, again)
        except StoreError as error:
            log_failure(log, error, "messages of %r cannot be settled: %s", self.group)
        if self.is_limited:
            self._on_returned()

    async def _dead_letter(self, receipts: Sequence[Receipts]) -> None:
        try:
            await self._store.dead_letter(self.group, receipts, DeadLetterReason.TOO_LARGE)
        except StoreError as error:
            log_failure(log, error, "messages of %r cannot be made dead letters: %s", self.group)
        if self.is_limited:
            self._on_returned()


def _receipts(queue: bytes, offsets: Offsets) -> list[Receipts]:
    """The receipts of messages, consecutive ones in one."""
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


def _ignore() -> None:
    """Do nothing: the group has ended."""
