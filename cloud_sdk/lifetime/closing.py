"""Closing at the end of a block, and from inside a handler: `close()` must not wait for the handler that calls it.

A handler may close its own consumer or the client. What runs on behalf of a handler is therefore marked, including the
tasks and threads that it starts. The work of `close()` runs in a task of its own without the mark.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar, copy_context
from typing import Final, Self

from cloud_sdk.errors import SluiceError
from cloud_sdk.lifetime.tasks import is_cancelled

logger = logging.getLogger(__name__)

# The consumers whose handler runs in this context.
_CONSUMERS: Final[ContextVar[tuple[object, ...]]] = ContextVar("consumers", default=())


class Closable(ABC):
    """An async context manager that is closed at the end of its block."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class HandlerCaller(Closable):
    """A `Closable` that calls a handler while it is open."""

    @property
    def is_called_from_handler(self) -> bool:
        """Whether the caller runs on behalf of a handler of this object."""
        return called_from_handler_of((self,))


def enter_handler(consumer: object) -> None:
    """Mark the current task: from here on it runs a handler of `consumer`."""
    _CONSUMERS.set((*_CONSUMERS.get(), consumer))


def called_from_handler_of(consumers: Iterable[object]) -> bool:
    """Whether the caller runs on behalf of a handler of one of these consumers."""
    marked = _CONSUMERS.get()
    return bool(marked) and any(each in marked for each in consumers)


def create_closing_task(work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
    """Run the work of a `close()` in a task that belongs to no handler."""
    context = copy_context()
    context.run(_CONSUMERS.set, ())
    return asyncio.get_running_loop().create_task(work, context=context)


async def wait_for_close(closing: "asyncio.Task[None]", stop_waiting: Callable[[], object]) -> None:
    """Wait for the task of a `close()`. If the caller is cancelled, call `stop_waiting` and let the task end by
    itself."""
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        if is_cancelled():
            stop_waiting()
            raise
        # Otherwise the closing task itself was cancelled: it has given up what it waited for.


def log_lost_settlements(closing: "asyncio.Task[None]") -> None:
    """Log why the last settlements could not be sent. For closing tasks that nobody waits for."""
    if not closing.cancelled() and isinstance(error := closing.exception(), SluiceError):
        logger.warning("the last settlements could not be sent, and their messages come again: %s", error)
