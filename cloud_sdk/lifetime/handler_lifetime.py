"""The lifetime of a consumer that calls handlers: it is opened, closed once, and may end by itself."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable

from cloud_sdk.errors import ClientClosed, SluiceError
from cloud_sdk.lifetime.closing import called_from_handler_of, create_closing_task, log_lost_settlements, wait_for_close
from cloud_sdk.lifetime.open_resources import OpenResources, Resource

logger = logging.getLogger(__name__)


class HandlerLifetime:
    """The part of `PushConsumer` and `BroadcastConsumer` that opens, closes and waits."""

    def __init__(self, consumer: Resource, resources: OpenResources) -> None:
        self._consumer = consumer
        self._resources = resources
        self._closing: asyncio.Task[None] | None = None
        self._closed_by_client = False

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing is not None

    def open(self) -> None:
        """Close the consumer with its client from now on. Raises `ClientClosed`."""
        self._resources.add(self._consumer)

    def start_close(self, work: Coroutine[None, None, None]) -> None:
        """Close the consumer by `work`, in a task of its own."""
        self._closing = create_closing_task(self._close(work))
        self._closed_by_client = self._resources.is_closed
        if called_from_handler_of((self._consumer,)):
            self._closing.add_done_callback(log_lost_settlements)

    async def wait_closed(self) -> None:
        """Wait until `start_close` has done its work. Returns at once in a handler of the consumer."""
        if self._closing is not None and not called_from_handler_of((self._consumer,)):
            await wait_for_close(self._closing, lambda: self._consumer.stop_waiting(for_node=False))

    def give_up(self) -> None:
        """Cancel the work of `start_close`."""
        if self._closing is not None:
            self._closing.cancel()

    async def wait(self, tasks: "Iterable[asyncio.Task[None]]") -> None:
        """Wait until the consumer is closed, or one of its tasks fails. Raises the error of the task, or `ClientClosed`
        if the client was closed first."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if self._closing is None:
            for task in done:
                task.result()
        else:
            await asyncio.shield(self._closing)
            if self._closed_by_client:
                self._resources.require_open()

    async def _close(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        finally:
            self._resources.discard(self._consumer)


def log_end(error: SluiceError) -> None:
    """Log why a consumer ended by itself, for programs that do not call `wait`."""
    if not isinstance(error, ClientClosed):
        logger.error("the consumer has ended and receives no more messages: %s", error)
