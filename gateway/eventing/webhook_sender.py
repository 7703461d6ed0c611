"""Sends the events of a rule to a webhook."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Final

from gateway.eventing.settling import MATCHED, Settling
from gateway.eventing.targets import MAX_HELD, Figures, Target
from gateway.eventing.webhook_client import WebhookClient, WebhookFailed
from gateway.events.compiled_rule import CompiledRule, Output
from gateway.events.definition import WebhookTarget
from gateway.events.event import Event
from gateway.events.requests import Request, webhook_request
from gateway.net.token_bucket import TokenBucket
from store.api import Receipts

log = logging.getLogger(__name__)

_BACKOFF_S: Final = (1.0, 60.0)  # after the first failure of an endpoint, and at most
_RATE_WAIT_S: Final = 30  # that an event may wait for the rate limit, with its lease


@dataclass(slots=True)
class _Prepared:
    """An event that the rule is about, and what is sent of it."""

    receipts: Receipts
    event: Event
    output: Output


class WebhookSender(Target):
    """Sends events to an endpoint."""

    def __init__(
        self,
        client: WebhookClient,
        name: str,
        rule: CompiledRule,
        settling: Settling,
        figures: Figures,
        on_room: Callable[[], None],
    ) -> None:
        assert rule.definition.webhook is not None
        self._target: WebhookTarget = rule.definition.webhook
        super().__init__((self._target.timeout_s + _RATE_WAIT_S + 30) * 1000)
        self._client = client
        self._name = name
        self._settling = settling
        self._figures = figures
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._added: list[_Prepared] = []  # that are sent next
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = 0  # bytes on their way to the endpoint
        rate = self._target.rate
        self._bucket = TokenBucket(rate, 1.0, self._loop.time()) if rate else None
        self._most = min(self._target.in_flight, rate * _RATE_WAIT_S) if rate else self._target.in_flight
        self._failures = 0  # of the endpoint, in a row
        self._down_until = 0.0  # loop time
        self._timer: asyncio.TimerHandle | None = None
        self.secret_name = self._target.secret  # "": requests are not signed
        self.secret = b""  # that signs requests

    @property
    def room(self) -> int:
        if self._loop.time() < self._down_until or not self.room_bytes:
            return 0
        return max(self._most - len(self._tasks), 0) * self._target.batch

    @property
    def room_bytes(self) -> int:
        return max(MAX_HELD - self._held, 0)

    def add(self, queue: bytes, offset: int, deliveries: int, event: Event, output: Output) -> int:
        self._added.append(_Prepared(Receipts(queue, offset, 1, deliveries), event, output))
        return len(output.data)

    def request(self, sent: Sequence[tuple[Event, Output]]) -> Request:
        """The request for events, and what is sent of each."""
        return webhook_request(self._name, self._target, sent, self.secret, int(time()))

    def send(self) -> None:
        batch, self._added = self._added, []
        for at in range(0, len(batch), self._target.batch):
            part = batch[at : at + self._target.batch]
            size = sum(len(each.output.data) for each in part)
            task = self._loop.create_task(self._post(part))
            self._tasks.add(task)
            self._held += size
            task.add_done_callback(partial(self._ended, size))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    async def stopped(self) -> None:
        """Wait until no request is on its way, after `stop`."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, size: int, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._held -= size
        self._on_room()

    async def _post(self, batch: list[_Prepared]) -> None:
        figures, settling = self._figures, self._settling
        try:
            if self._bucket is not None:
                await asyncio.sleep(self._bucket.spend(1, self._loop.time()))
            request = self.request([(each.event, each.output) for each in batch])
            await self._client.send(request, self._target.timeout_s)
        except WebhookFailed as error:
            figures.failed += 1
            figures.note_error(str(error))
            delay_ms = int(error.retry_after_s * 1000) or None
            for each in batch:
                settling.failed(each.receipts, str(error), delay_ms)
            if error.is_down:
                self._rest(error.retry_after_s)
        except asyncio.CancelledError:
            for each in batch:
                settling.unsent(each.receipts)
            raise
        except Exception as error:
            log.exception("rule %r cannot make a request", self._name)
            figures.failed += 1
            figures.note_error(f"an unexpected failure: {error!r}")
            for each in batch:
                settling.failed(each.receipts, f"an unexpected failure: {error!r}")
        else:
            self._failures = 0
            figures.delivered += len(batch)
            for each in batch:
                receipts = each.receipts
                settling.done(receipts.queue, receipts.offset, 1, receipts.deliveries, MATCHED)

    def _rest(self, retry_after_s: float) -> None:
        """Send nothing for a while: the endpoint cannot take requests, and each event has a bounded number of tries."""
        now = self._loop.time()
        if now < self._down_until and not retry_after_s:
            return  # it failed once, with several requests on their way
        first, most = _BACKOFF_S
        seconds = max(min(first * 2**self._failures, most), min(retry_after_s, most))
        self._failures = min(self._failures + 1, 10)
        self._down_until = now + seconds
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._on_room)
