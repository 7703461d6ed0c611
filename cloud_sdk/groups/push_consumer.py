"""A group member that calls a handler for each message."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from traceback import format_exception_only
from typing import Final, Self

from cloud_sdk.errors import SluiceError, TryAgain
from cloud_sdk.groups.leases import Lease
from cloud_sdk.groups.simple_consumer import Delivery, SimpleConsumer
from cloud_sdk.lifetime.closing import HandlerCaller, enter_handler
from cloud_sdk.lifetime.handler_lifetime import HandlerLifetime, log_end
from cloud_sdk.lifetime.tasks import is_cancelled
from cloud_sdk.trace_context import within_trace
from cloud_sdk.transport.connection import Retry, is_transient

logger = logging.getLogger(__name__)

Handler = Callable[[Delivery], Awaitable[None]]

_WAIT_S: Final = 20.0  # how long one receive waits for messages
_EXTENSIONS: Final = 3  # how often a lease is extended within its length


class PushConsumer(HandlerCaller):
    """An async context manager. While it is open, the handler is called for up to `concurrency` messages at once.

    A message is acknowledged when its handler returns. If the handler raises, the message comes again after a delay
    that grows with its deliveries, or after the delay of `TryAgain`. After too many deliveries it becomes a dead
    letter, with the type and the message of the last exception. A slow message delays no other. The leases of messages
    that wait or are being handled are extended.

    With `ordered`, messages with the same ordering key (or the same topic, without a key) are handled one after the
    other, also across failures. Messages with other keys are handled beside them.
    """

    def __init__(
        self, consumer: SimpleConsumer, handler: Handler, *, concurrency: int, ordered: bool, invisible_seconds: float
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._ordered = ordered
        self._invisible_s = invisible_seconds
        self._lanes: deque[deque[Delivery]] = deque()  # messages that wait; those of one lane are handled in order
        self._unsettled: dict[Lease, Delivery] = {}  # everything that is leased and not settled
        self._lane_count = asyncio.Semaphore(0)  # wakes workers: one permit for each lane
        self._capacity = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []  # the receiver first
        self._workers: list[asyncio.Task[None]] = []
        self._lifetime = HandlerLifetime(self, consumer.hand_over())

    async def __aenter__(self) -> Self:
        self._lifetime.open()
        self._workers = [asyncio.create_task(self._handle_lanes()) for _ in range(self._concurrency)]
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._extend_leases())]
        return self

    async def wait(self) -> None:
        """Wait until the consumer is closed. Raises the error that ended it, if it ended by itself, and `ClientClosed`
        if its client was closed first."""
        await self._lifetime.wait(self._tasks)

    async def close(self) -> None:
        """Receive no more messages, wait for the running handlers, give back messages that no handler has begun with,
        and send the last settlements.

        In a handler of the consumer it returns at once, and the consumer ends after that handler. If the caller is
        cancelled (by a timeout around the call), running handlers are cancelled and their messages given back."""
        if not self._lifetime.is_closing:
            self._stop_receiving()
            self._lifetime.start_close(self._finish())
        await self._lifetime.wait_closed()

    def stop_waiting(self, *, for_node: bool) -> None:
        """Have a running `close` cancel the handlers; `for_node`: and send no more settlements."""
        for worker in self._workers:
            worker.cancel()
        if for_node:
            self._lifetime.give_up()

    def _stop_receiving(self) -> None:
        """Receive nothing more, and give back what no handler has begun with."""
        for task in self._tasks[:1]:
            task.cancel()
        waiting = [delivery.lease for lane in self._lanes for delivery in lane]
        self._lanes.clear()
        self._give_back_unseen(waiting)
        for _ in self._workers:
            self._lane_count.release()

    async def _finish(self) -> None:
        try:
            await asyncio.gather(*self._workers, return_exceptions=True)
            self._settle([], list(self._unsettled), 0.0)  # of cancelled handlers
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._consumer.close()
        finally:
            for task in self._tasks:
                task.cancel()

    async def _receive(self) -> None:
        retry = Retry()
        while True:
            while len(self._unsettled) > 2 * self._concurrency:
                self._capacity.clear()
                await self._capacity.wait()
            try:
                deliveries = await self._consumer.batch(_WAIT_S)
            except SluiceError as error:
                if not is_transient(error):
                    log_end(error)
                    raise
                logger.warning("receiving failed and is tried again: %s", error)
                await retry.pause()
                continue
            retry.succeeded()
            for lane in _lanes(deliveries) if self._ordered else [deque((each,)) for each in deliveries]:
                self._lanes.append(lane)
                self._lane_count.release()
            self._unsettled.update((delivery.lease, delivery) for delivery in deliveries)

    async def _extend_leases(self) -> None:
        while True:
            await asyncio.sleep(self._invisible_s / _EXTENSIONS)
            leases = list(self._unsettled)
            if not leases:
                continue
            try:
                lost = await self._consumer.extend_leases(leases, self._invisible_s)
            except SluiceError as error:
                logger.warning("leases could not be extended: %s", error)
                continue
            for lease in lost:
                self._unsettled.pop(lease, None)

    async def _handle_lanes(self) -> None:
        enter_handler(self)
        while True:
            await self._lane_count.acquire()
            if not self._lanes:
                if self._lifetime.is_closing:
                    return
                continue
            lane = self._lanes.popleft()
            while lane:
                delivery = lane.popleft()
                if delivery.lease not in self._unsettled:
                    continue  # its lease was lost while it waited
                if not await self._handle(delivery) or self._lifetime.is_closing:
                    self._give_back_unseen([delivery.lease for delivery in lane])
                    break

    async def _handle(self, delivery: Delivery) -> bool:
        """Call the handler and settle the message. Returns whether it is acknowledged."""
        try:
            with within_trace(delivery.trace_context):
                await self._handler(delivery)
        except TryAgain as again:
            self._settle([], [delivery.lease], again.delay_seconds, _text_of(again.__cause__ or again))
            return False
        except (Exception, asyncio.CancelledError) as error:  # a handler may also wait for a task that is cancelled
            if is_cancelled():
                self._settle([], [delivery.lease], 0.0)
                raise
            logger.exception("a handler failed, and its message comes again: %s", delivery)
            self._settle([], [delivery.lease], None, _text_of(error))
            return False
        self._settle([delivery.lease], [], 0.0)
        return True

    def _settle(self, done: list[Lease], again: list[Lease], delay_seconds: float | None, error: str = "") -> None:
        self._consumer.settle(done, again, delay_seconds, error)
        self._forget((*done, *again))

    def _give_back_unseen(self, leases: list[Lease]) -> None:
        self._consumer.give_back_unseen(leases)
        self._forget(leases)

    def _forget(self, leases: Iterable[Lease]) -> None:
        for lease in leases:
            self._unsettled.pop(lease, None)
        self._capacity.set()


def _text_of(error: BaseException) -> str:
    """The type and the message of an exception."""
    return "".join(format_exception_only(error)).strip()


def _lanes(deliveries: list[Delivery]) -> list[deque[Delivery]]:
    """Split messages by partition and ordering key, or topic where a message has no key."""
    lanes: dict[tuple[int, str, str], deque[Delivery]] = {}
    for delivery in deliveries:
        key = delivery.ordering_key
        lane = (delivery.partition, "topic", delivery.topic) if key is None else (delivery.partition, "key", key)
        lanes.setdefault(lane, deque()).append(delivery)
    return list(lanes.values())
