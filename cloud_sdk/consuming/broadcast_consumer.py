"""A reader that calls a handler for every message of a parent topic."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Self

from cloud_sdk.consuming.pull_consumer import PullConsumer
from cloud_sdk.errors import OffsetOutOfRange, SluiceError, TryAgain
from cloud_sdk.lifetime.closing import HandlerCaller, enter_handler
from cloud_sdk.lifetime.handler_lifetime import HandlerLifetime, log_end
from cloud_sdk.lifetime.tasks import is_cancelled
from cloud_sdk.message import Message
from cloud_sdk.trace_context import within_trace
from cloud_sdk.transport.connection import Retry, is_transient

logger = logging.getLogger(__name__)

BroadcastHandler = Callable[[Message], Awaitable[None]]

_WAIT_S: Final = 20.0  # how long one poll waits for messages
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0


class BroadcastConsumer(HandlerCaller):
    """An async context manager. While it is open, the handler is called for every message of the parent topic, one
    after the other, whoever else receives it. A message whose handler raises is tried again, up to `attempts` times in
    all, and then skipped.

    With a `member` name it continues where it was when it is opened again.
    """

    def __init__(self, consumer: PullConsumer, handler: BroadcastHandler, *, attempts: int, commits: bool) -> None:
        self._consumer = consumer
        self._handler = handler
        self._attempts = attempts
        self._commits = commits
        self._task: asyncio.Task[None] | None = None
        self._is_handling = False
        self._lifetime = HandlerLifetime(self, consumer.hand_over())

    async def __aenter__(self) -> Self:
        self._lifetime.open()
        await self._consumer.positions()  # so that messages from here on are seen
        self._task = asyncio.create_task(self._run())
        return self

    async def wait(self) -> None:
        """Wait until the consumer is closed. Raises the error that ended it, if it ended by itself, and `ClientClosed`
        if its client was closed first."""
        if self._task is not None:
            await self._lifetime.wait((self._task,))

    async def close(self) -> None:
        """Stop, and cancel the handler. With a `member` name, its message comes again when the consumer is opened
        again.

        In the handler it returns at once, and the consumer ends after the handler. The message counts as handled."""
        if not self._lifetime.is_closing:
            self._lifetime.start_close(self._finish())
            if not self.is_called_from_handler or not self._is_handling:
                self.stop_waiting(for_node=False)
        await self._lifetime.wait_closed()

    def stop_waiting(self, *, for_node: bool) -> None:
        """Have a running `close` cancel the handler; `for_node`: and wait for nothing else."""
        if self._task is not None:
            self._task.cancel()
        if for_node:
            self._lifetime.give_up()

    async def _finish(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.close()

    async def _run(self) -> None:
        enter_handler(self)
        retry = Retry()
        while True:
            try:
                messages = await self._poll()
                handled: dict[int, int] = {}
                for message in messages:
                    self._is_handling = True
                    if not self._lifetime.is_closing and await self._handle(message):
                        handled[message.partition] = message.offset + 1
                    self._is_handling = False
                if handled and self._commits:
                    await self._consumer.commit(handled if self._lifetime.is_closing else None)
            except SluiceError as error:
                if not is_transient(error):
                    log_end(error)
                    raise
                logger.warning("reading failed and is tried again: %s", error)
                await retry.pause()
            else:
                retry.succeeded()
            if self._lifetime.is_closing:
                return

    async def _poll(self) -> list[Message]:
        try:
            return await self._consumer.poll(_WAIT_S)
        except OffsetOutOfRange as error:
            logger.warning("retention removed messages before they were read; they are skipped: %s", error)
            await self._consumer.skip_gone()
            return []

    async def _handle(self, message: Message) -> bool:
        """Call the handler. Returns False if it failed and the consumer is closing."""
        pause = _FIRST_PAUSE_S
        for attempt in range(1, self._attempts + 1):
            try:
                with within_trace(message.trace_context):
                    await self._handler(message)
            except (Exception, asyncio.CancelledError) as error:  # a handler may also wait for a task that is cancelled
                if is_cancelled():
                    raise
                logger.exception("a handler failed, attempt %s of %s: %s", attempt, self._attempts, message)
                if self._lifetime.is_closing:
                    return False
                if attempt < self._attempts:
                    delay = error.delay_seconds if isinstance(error, TryAgain) else None
                    await asyncio.sleep(pause if delay is None else delay)
                    pause = min(pause * 2, _LONGEST_PAUSE_S)
            else:
                break
        return True
