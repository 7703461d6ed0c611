"""One event rule at work: it consumes as its group, evaluates, and hands the events to its target.

The rules of the file:

* A rule takes events only while its target has room, and while its user may read its topics. Until then its group falls
  behind, and nothing is lost.
* What becomes of an event is a settlement of its group: finished, to come again, or a dead letter with the cause.
* An event is evaluated once for each delivery. If that fails, it would fail again: it is a dead letter.
* Few rules pop and evaluate at a time, in slices of a millisecond. A rule that is far behind has turns beside devices.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import record
from gateway.auth.authority import Authority, UserDisabled
from gateway.auth.bans import ClientBanned
from gateway.auth.rules.permissions import Permissions
from gateway.auth.rules.sources import LOCAL
from gateway.eventing.enrichment import Enrichment
from gateway.eventing.secrets import WebhookSecrets, no_secret
from gateway.eventing.settling import UNMATCHED, Settling
from gateway.eventing.targets import Figures, Target
from gateway.eventing.topic_publisher import TopicPublisher
from gateway.eventing.webhook_client import WebhookClient
from gateway.eventing.webhook_sender import WebhookSender
from gateway.events.compiled_rule import CompiledRule
from gateway.events.definition import parse_definition
from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import Event
from gateway.observe.throttled_log import ThrottledLog
from gateway.rpc.loop_turns import LoopTurns, Turn
from gateway.rpc.wakeups import wait_until
from matcher.names import matches
from store.api import EventRule, PopRequest, PopResult, Receipts, Start, Store
from store.errors import StoreError

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 256 << 10  # of the messages of a pop; one may be larger
_MOST: Final = 512  # events of a pop
_FAR: Final = 1000  # messages that a pop leaves to a rule that is far behind
_SLICE: Final = 16  # events between two looks at the clock
_SLICE_S: Final = 0.001  # of work, after which others have their turn
_IDLE_S: Final = 600.0  # after which a rule that nothing wakes looks again
_LOOK_S: Final = 30.0  # after which a rule that may not run looks again
_FAULT_S: Final = 5.0  # after an unexpected failure
_LOOKUP_S: Final = 0.5  # until a value that could not be read is looked up again
_MAX_WAITING: Final = 4096  # settlements that are not written yet


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What the rules of a process share."""

    store: Store
    authority: Authority
    client: WebhookClient
    secrets: WebhookSecrets
    turns: LoopTurns
    busy: asyncio.Semaphore  # rules that pop and evaluate at a time
    reads: Callable[[str, bytes], bool]  # whether the rule of that name reads a topic


class RuleRunner:
    """Runs one rule. `start` it once, and `stop` it once."""

    def __init__(self, rule: EventRule, around: Surroundings) -> None:
        self.rule = rule
        self.trouble = ""  # why it does not run; "": it does
        self.figures = Figures()
        self._around = around
        self._awake = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._task: asyncio.Task[None] | None = None
        self._settling = Settling(around.store, rule.group, log, self.wake)
        self._target: Target | None = None
        self._changes = (-1, -1)  # of users and rules, and of secrets, that the rights are based on
        self._permissions: Permissions | None = None  # of its user; None: it may do everything
        self._is_far = False
        self._most = _MOST  # events of a pop, fewer if their outputs were too large for the target
        self._is_blind = False  # a value could not be looked up: events were given back
        try:
            self.compiled: CompiledRule | None = CompiledRule(parse_definition(rule.definition))
        except InvalidRule as error:
            self.compiled = None
            self.trouble = f"its definition cannot be used: {error}"
            return
        if self.compiled.definition.topic is not None:
            publisher = rule, self.compiled, self._settling, self.figures, self.wake
            self._target = TopicPublisher(around.store, *publisher, around.reads)
        else:
            sender = rule.name.decode(), self.compiled, self._settling, self.figures, self.wake
            self._target = WebhookSender(around.client, *sender)

    def wake(self) -> None:
        """Look for events: there may be some, or there is room for some."""
        self._awake.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take no more events, and settle those that were taken."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._target is not None:
            self._target.stop()
        if isinstance(self._target, WebhookSender):
            await self._target.stopped()
        await self._settling.flush()

    # --- events

    async def _run(self) -> None:
        is_begun = False
        while True:
            try:
                if not is_begun:
                    await self._end_leases()
                    is_begun = True
                await self._step()
            except StoreError as error:
                self._throttled.warning("store", f"rule {self._name}: {error}")
                await asyncio.sleep(_FAULT_S)
            except Exception:
                log.exception("rule %s failed, and is tried again", self._name)
                self.figures.note_error("an unexpected failure: see the log of the node")
                await asyncio.sleep(_FAULT_S)

    async def _end_leases(self) -> None:
        """End the leases of an earlier process: nobody else is a member of this group. Raises `StoreError`."""
        store = self._around.store
        for queue in self.rule.queues(store.partition_count):
            await store.release_leases(self.rule.group, queue)

    async def _step(self) -> None:
        target, loop = self._target, asyncio.get_running_loop()
        if target is None:
            await wait_until(self._awake, loop.time() + _IDLE_S)
            return
        await self._renew_rights(target)
        if self.trouble:
            await wait_until(self._awake, loop.time() + _LOOK_S)
            return
        room = min(target.room, self._most)
        if not room or self._settling.waiting >= _MAX_WAITING:
            await wait_until(self._awake, loop.time() + _IDLE_S)
            return
        if self._is_far:
            turn = Turn(self._around.turns)
            await turn.wait()
            popped = await turn.timed(self._take(target, room, self._around.turns.most_bytes()))
            turn.end_soon()
        else:
            popped = await self._take(target, room, _BATCH_BYTES)
        if self._is_blind:
            self._is_blind = False
            await asyncio.sleep(_LOOKUP_S)
        if not popped.runs:
            wait_s = _IDLE_S
            if popped.available_at is not None:
                wait_s = min(max(popped.available_at / 1000 - time.time(), 0.0), _IDLE_S)
            await wait_until(self._awake, loop.time() + wait_s)

    async def _take(self, target: Target, room: int, max_bytes: int) -> PopResult:
        """Pop events, evaluate them and send them. Raises `StoreError`."""
        around, rule = self._around, self.rule
        request = PopRequest(
            rule.group,
            rule.queues(around.store.partition_count),
            room,
            min(max_bytes, _BATCH_BYTES),
            target.lease_ms,
            Start.EARLIEST,
            early=True,
            member=b"rule",
            user=rule.by,
        )
        async with around.busy:
            popped = await around.store.pop(request)
            self._is_far = popped.left > _FAR
            if popped.runs:
                added, unsent = await self._evaluate(target, popped)
                target.send()
                if unsent:
                    self._most = max(added, 1)
                    await self._settling.flush()  # before the next pop, which has them again
                else:
                    self._most = min(2 * self._most, _MOST)
        return popped

    async def _evaluate(self, target: Target, popped: PopResult) -> tuple[int, int]:
        """Add the events that the rule is about to those that the target sends, and settle all others. Returns how many
        were added, and how many were given back because the target has no room for outputs as large as those before."""
        compiled, settling = self.compiled, self._settling
        assert compiled is not None
        filters = compiled.filters if self.rule.reads_parents else ()
        enrichment: Enrichment | None = None
        if compiled.lookups:
            enrichment = Enrichment(self._around.store, compiled, self._may_read, int(time.time() * 1000))
        number, began = 0, time.perf_counter()
        added = unsent = 0
        room = target.room_bytes
        for run in popped.runs:
            queue, deliveries, data = run.queue, run.deliveries, run.data
            for offset, start in enumerate(record.split(data), run.offset):
                number += 1
                if number % _SLICE == 0 and time.perf_counter() - began > _SLICE_S:
                    await asyncio.sleep(0)
                    began = time.perf_counter()
                if room <= 0:
                    settling.unsent(Receipts(queue, offset, 1, deliveries))
                    unsent += 1
                    continue
                event = Event.of_frame(data, start)
                if filters and not any(matches(each, event.topic) for each in filters):
                    settling.done(queue, offset, 1, deliveries, UNMATCHED)
                    continue
                try:
                    if enrichment is not None:
                        await enrichment.enrich(event)
                except EvaluationFailed as error:
                    self._refuse(Receipts(queue, offset, 1, deliveries), str(error))
                    continue
                except StoreError as error:
                    self._throttled.warning("store", f"rule {self._name}: {error}")
                    self.figures.note_error(f"a value cannot be looked up: {error}")
                    settling.unsent(Receipts(queue, offset, 1, deliveries))
                    unsent, room, self._is_blind = unsent + 1, 0, True
                    continue
                size = self._handle(target, compiled, queue, offset, deliveries, event)
                if size >= 0:
                    added += 1
                    room -= size
        return added, unsent

    def _handle(
        self, target: Target, compiled: CompiledRule, queue: bytes, offset: int, deliveries: int, event: Event
    ) -> int:
        """Add an event to those that the target sends, and return its bytes; or settle it, and return -1."""
        try:
            if compiled.matches(event):
                self.figures.matched += 1
                return target.add(queue, offset, deliveries, event, compiled.output(event))
            self.figures.unmatched += 1
            self._settling.done(queue, offset, 1, deliveries, UNMATCHED)
        except EvaluationFailed as error:
            self._refuse(Receipts(queue, offset, 1, deliveries), str(error))
        except Exception as error:
            log.exception("rule %s failed on the message at %d", self._name, event.position)
            self._refuse(Receipts(queue, offset, 1, deliveries), f"an unexpected failure: {error!r}")
        return -1

    def _refuse(self, receipts: Receipts, error: str) -> None:
        self.figures.refused += 1
        self.figures.note_error(error)
        self._settling.refused(receipts, error)

    # --- rights

    async def _renew_rights(self, target: Target) -> None:
        """Find out whether the rule may run now. Raises `StoreError`."""
        changes = self._around.authority.changes, self._around.secrets.changes
        if changes == self._changes:
            return
        trouble = await self._denial_of(target) if self.rule.by else ""
        if isinstance(target, WebhookSender) and target.secret_name:
            roles = await self._around.authority.roles_of(self.rule.by) if self.rule.by else None
            secret = self._around.secrets.find(target.secret_name, self.rule.by, roles)
            target.secret = secret or b""
            if secret is None:
                trouble = trouble or no_secret(target.secret_name, self.rule.by)
        if trouble and trouble != self.trouble:
            log.warning("rule %s does not run: %s", self._name, trouble)
        self.trouble = trouble
        self._changes = (-1, -1) if trouble else changes  # a ban ends without a change

    async def _denial_of(self, target: Target) -> str:
        """Why the user of the rule may not run it; "": he may. Raises `StoreError`."""
        user = repr(self.rule.by.decode())
        try:
            permissions = await self._around.authority.permissions_of(self.rule.by)
            await self._around.authority.bans.check(b"", self.rule.by, LOCAL)
        except UserDisabled:
            return f"its user {user} is disabled"
        except ClientBanned:
            return f"its user {user} is banned"
        self._permissions = permissions
        if isinstance(target, TopicPublisher):
            target.permit(permissions)
        assert self.compiled is not None
        for each in self.compiled.reads if permissions is not None else ():
            if permissions is not None and not permissions.may_subscribe(each):
                return f"its user {user} may not read {each.decode()!r}"
        return ""

    def _may_read(self, topic: bytes) -> bool:
        return self._permissions is None or self._permissions.may_subscribe(topic)

    @property
    def _name(self) -> str:
        return repr(self.rule.name.decode())
