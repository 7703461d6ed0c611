"""Members that call a handler for each message: of a group (`PushConsumer`), or for everybody (`BroadcastConsumer`)."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

from cloud_sdk.connection import Retry, is_passing
from cloud_sdk.errors import ClientClosed, OffsetOutOfRange, SluiceError, TryAgain
from cloud_sdk.leases import Lease
from cloud_sdk.message import Message
from cloud_sdk.open_resources import ending, handles, is_handling, tell_of_loss, wait_for_end
from cloud_sdk.pull_consumer import PullConsumer
from cloud_sdk.simple_consumer import Delivery, SimpleConsumer
from cloud_sdk.tasks import is_cancelled

logger = logging.getLogger(__name__)

Handler = Callable[[Delivery], Awaitable[None]]
BroadcastHandler = Callable[[Message], Awaitable[None]]

_FOR_EVER_S: Final = 10 * 365 * 86_400.0
_WAIT_S: Final = 20.0
_KEPT_SHARE: Final = 3  # leases are extended this many times within their length
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0


class PushConsumer:
    """An async context manager: while it is open the handler is called, for up to `concurrency` messages at once.

    A message whose handler returns is acknowledged. One whose handler raises comes again, after a time that grows with
    its deliveries, or that `TryAgain` says; in the end it becomes a dead letter. A slow message holds up no other. The
    leases of messages that wait or are worked on are extended.

    In an ordered consumer messages with the same ordering key (or the same topic, without one) are handled one after
    the other, also across failures; others beside them.
    """

    def __init__(
        self, consumer: SimpleConsumer, handler: Handler, *, concurrency: int, ordered: bool, invisible_seconds: float
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._ordered = ordered
        self._invisible_s = invisible_seconds
        self._lanes: deque[deque[Delivery]] = deque()  # what nobody works on; each is worked on in order
        self._held: dict[Lease, Delivery] = {}  # everything that is leased and not settled
        self._work = asyncio.Semaphore(0)  # as many as there are lanes
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []
        self._opened = consumer.adopted()
        self._ending: asyncio.Task[None] | None = None
        self._is_with_client = False  # that ends it

    async def __aenter__(self) -> "PushConsumer":
        self._opened.add(self)
        self._workers = [asyncio.create_task(self._handle_lanes()) for _ in range(self._concurrency)]
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._keep())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def wait(self) -> None:
        """Wait until it is closed, or ends by itself: raises why, an error that trying again does not help;
        `ClientClosed`, where its client was closed before it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        if self._ending is None:
            for task in done:
                task.result()
        else:
            await asyncio.shield(self._ending)
            if self._is_with_client:
                self._opened.require_open()

    async def close(self) -> None:
        """Receive no more, let the handlers that run come to their end, give back what none has begun with, and send
        what was settled. In one of its handlers it returns at once, and the end comes when that has returned. Cancelled
        (a timeout around it), it has handlers that still run cancelled, and their messages given back."""
        if self._ending is None:
            self._stop()
            self._ending = ending(self._end())
            self._is_with_client = self._opened.is_closed
            if self.is_handling:
                self._ending.add_done_callback(tell_of_loss)
        if not self.is_handling:
            await wait_for_end(self._ending, self.hurry)

    @property
    def is_handling(self) -> bool:
        """Whether one of its handlers asks, or what that has started."""
        return is_handling((self,))

    def hurry(self, *, at_last: bool = False) -> None:
        """Have a `close` that goes on cancel the handlers that run; `at_last`: and send no more."""
        for worker in self._workers:
            worker.cancel()
        if at_last and self._ending is not None:
            self._ending.cancel()

    def _stop(self) -> None:
        """No handler begins from here on."""
        for task in self._tasks[:1]:
            task.cancel()
        waiting = [delivery.lease for lane in self._lanes for delivery in lane]
        self._lanes.clear()
        self._consumer.settle((), waiting)
        for lease in waiting:
            self._held.pop(lease, None)  # nor extend their leases
        for _ in self._workers:
            self._work.release()

    async def _end(self) -> None:
        try:
            await asyncio.gather(*self._workers, return_exceptions=True)
            self._settle([], list(self._held), 0.0)  # of handlers that were cancelled
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._consumer.close()
        finally:
            for task in self._tasks:
                task.cancel()
            self._opened.discard(self)

    async def _receive(self) -> None:
        retry = Retry(_FOR_EVER_S)
        while True:
            while len(self._held) > 2 * self._concurrency:
                self._room.clear()
                await self._room.wait()
            try:
                deliveries = await self._consumer.batch(_WAIT_S)
            except SluiceError as error:
                if not is_passing(error):
                    _tell_of_end(error)
                    raise
                logger.warning("nothing is received, which is tried again: %s", error)
                await retry.pause()
                continue
            retry.succeeded()
            for lane in _lanes(deliveries) if self._ordered else [deque((each,)) for each in deliveries]:
                self._lanes.append(lane)
                self._work.release()
            self._held.update((delivery.lease, delivery) for delivery in deliveries)

    async def _keep(self) -> None:
        """Extend the leases of everything that is held."""
        while True:
            await asyncio.sleep(self._invisible_s / _KEPT_SHARE)
            leases = list(self._held)
            if not leases:
                continue
            try:
                lost = await self._consumer.keep(leases, self._invisible_s)
            except SluiceError as error:
                logger.warning("leases could not be extended: %s", error)
                continue
            for lease in lost:
                self._held.pop(lease, None)

    async def _handle_lanes(self) -> None:
        handles(self)
        while True:
            await self._work.acquire()
            if not self._lanes:
                if self._ending is not None:
                    return
                continue
            lane = self._lanes.popleft()
            while lane:
                delivery = lane.popleft()
                if delivery.lease not in self._held:
                    continue  # its lease was lost while it waited: somebody else has it
                if not await self._handle(delivery):
                    self._settle([], [delivery.lease for delivery in lane], 0.0)  # none before it
                    break
                if self._ending is not None:
                    self._settle([], [delivery.lease for delivery in lane], 0.0)
                    break

    async def _handle(self, delivery: Delivery) -> bool:
        """Call the handler, and settle. Whether it is done."""
        try:
            await self._handler(delivery)
        except TryAgain as again:
            self._settle([], [delivery.lease], again.delay_seconds)
            return False
        except (Exception, asyncio.CancelledError):  # the second also of what a handler waits for
            if is_cancelled():
                self._settle([], [delivery.lease], 0.0)
                raise
            logger.exception("a handler failed, and its message comes again: %s", delivery)
            self._settle([], [delivery.lease], None)
            return False
        self._settle([delivery.lease], [], 0.0)
        return True

    def _settle(self, done: list[Lease], again: list[Lease], delay_seconds: float | None) -> None:
        self._consumer.settle(done, again, delay_seconds)
        for lease in (*done, *again):
            self._held.pop(lease, None)
        self._room.set()


class BroadcastConsumer:
    """An async context manager: while it is open the handler is called for every message of the parent topic, whoever
    else gets it, one after the other. One whose handler raises is tried again, `attempts` times, and then left out.

    With a group (one for each member) it goes on where it was when it is opened again.
    """

    def __init__(self, consumer: PullConsumer, handler: BroadcastHandler, *, attempts: int, commits: bool) -> None:
        self._consumer = consumer
        self._handler = handler
        self._attempts = attempts
        self._commits = commits
        self._task: asyncio.Task[None] | None = None
        self._opened = consumer.adopted()
        self._is_busy = False  # the handler runs
        self._ending: asyncio.Task[None] | None = None
        self._is_with_client = False  # that ends it

    async def __aenter__(self) -> "BroadcastConsumer":
        self._opened.add(self)
        await self._consumer.positions()  # what comes from here on is seen
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def wait(self) -> None:
        """Wait until it is closed, or ends by itself: raises why, an error that trying again does not help;
        `ClientClosed`, where its client was closed before it."""
        if self._task is None:
            return
        await asyncio.wait((self._task,))
        if self._ending is None:
            self._task.result()
        else:
            await asyncio.shield(self._ending)
            if self._is_with_client:
                self._opened.require_open()

    async def close(self) -> None:
        """Stop. A message whose handler is stopped in the middle comes again to a `member` that comes back. In its
        handler it returns at once, and the end comes when that has returned: its message is done."""
        if self._ending is None:
            self._ending = ending(self._end())
            self._is_with_client = self._opened.is_closed
            if self.is_handling:
                self._ending.add_done_callback(tell_of_loss)
            if not self.is_handling or not self._is_busy:
                self.hurry()
        if not self.is_handling:
            await wait_for_end(self._ending, self.hurry)

    @property
    def is_handling(self) -> bool:
        """Whether its handler asks, or what that has started."""
        return is_handling((self,))

    def hurry(self, *, at_last: bool = False) -> None:
        """Have a `close` that goes on stop the handler."""
        if self._task is not None:
            self._task.cancel()
        if at_last and self._ending is not None:
            self._ending.cancel()

    async def _end(self) -> None:
        try:
            if self._task is not None:
                await asyncio.gather(self._task, return_exceptions=True)
            await self._consumer.close()
        finally:
            self._opened.discard(self)

    async def _run(self) -> None:
        handles(self)
        retry = Retry(_FOR_EVER_S)
        while True:
            try:
                messages = await self._poll()
                handled: dict[int, int] = {}
                for message in messages:
                    self._is_busy = True
                    if self._ending is None and await self._handle(message):
                        handled[message.partition] = message.offset + 1
                    self._is_busy = False
                if handled and self._commits:
                    await self._consumer.commit(handled if self._ending is not None else None)
            except SluiceError as error:
                if not is_passing(error):
                    _tell_of_end(error)
                    raise
                logger.warning("nothing is read, which is tried again: %s", error)
                await retry.pause()
            else:
                retry.succeeded()
            if self._ending is not None:
                return

    async def _poll(self) -> list[Message]:
        try:
            return await self._consumer.poll(_WAIT_S)
        except OffsetOutOfRange as error:
            logger.warning("messages are gone before they were read, and left out: %s", error)
            await self._consumer.skip_gone()
            return []

    async def _handle(self, message: Message) -> bool:
        """Call the handler. False: it failed, and is closed."""
        pause = _FIRST_PAUSE_S
        for attempt in range(1, self._attempts + 1):
            try:
                await self._handler(message)
            except (Exception, asyncio.CancelledError) as error:  # the second also of what a handler waits for
                if is_cancelled():
                    raise
                logger.exception("a handler failed, attempt %s of %s: %s", attempt, self._attempts, message)
                if self._ending is not None:
                    return False
                if attempt < self._attempts:
                    delay = error.delay_seconds if isinstance(error, TryAgain) else None
                    await asyncio.sleep(pause if delay is None else delay)
                    pause = min(pause * 2, _LONGEST_PAUSE_S)
            else:
                break
        return True


def _tell_of_end(error: SluiceError) -> None:
    """Who does not `wait` hears of it, too, but for who has closed the client."""
    if not isinstance(error, ClientClosed):
        logger.error("the consumer has ended, and gets nothing any more: %s", error)


def _lanes(deliveries: list[Delivery]) -> list[deque[Delivery]]:
    """Messages by partition and what they have to stay in order with."""
    lanes: dict[tuple[int, str, str], deque[Delivery]] = {}
    for delivery in deliveries:
        key = delivery.ordering_key
        lane = (delivery.partition, "topic", delivery.topic) if key is None else (delivery.partition, "key", key)
        lanes.setdefault(lane, deque()).append(delivery)
    return list(lanes.values())
