"""What of a client is open, and is closed with it; and whose handlers run.

A handler may close its own consumer, or the client: nobody may wait for itself. So what runs on behalf of a handler is
marked, tasks and threads that it starts among it, and ends are tasks of their own, without the mark.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Final, Protocol

from cloud_sdk.errors import ClientClosed, SluiceError
from cloud_sdk.tasks import is_cancelled

logger = logging.getLogger(__name__)

_LAST_S: Final = 1.0  # for what is hurried to come to its end
_HANDLED: Final[ContextVar[tuple[object, ...]]] = ContextVar("handled", default=())  # consumers whose handler this is


class Opening(Protocol):
    """What can be open."""

    async def close(self) -> None: ...

    def hurry(self, *, at_last: bool) -> None:
        """Have a `close` that goes on wait for nobody; `at_last`: nor for the node."""


class Opened:
    """Of one client."""

    def __init__(self) -> None:
        self._open: dict[Opening, None] = {}
        self.is_closed = False
        self._patience: asyncio.Timeout | None = None

    def add(self, opening: Opening) -> None:
        """It is open until `discard`. Raises `ClientClosed`."""
        self.require_open()
        self._open[opening] = None

    def require_open(self) -> None:
        """Raises `ClientClosed`."""
        if self.is_closed:
            raise ClientClosed("the client is closed")

    def discard(self, opening: Opening) -> None:
        self._open.pop(opening, None)

    @property
    def is_handling(self) -> bool:
        """Whether a handler of something that is open asks."""
        return is_handling(self._open)

    async def close_handled(self) -> None:
        """Have those whose handler asks call it no more from here on; `close` has to follow."""
        for each in [each for each in self._open if is_handling((each,))]:
            await each.close()

    async def close(self, seconds: float) -> None:
        """Close all. After so many seconds nothing is waited for but the node, which has a moment more."""
        self.is_closed = True
        closing = {ending(each.close()): each for each in self._open}
        if not closing:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds) as self._patience:
                await asyncio.wait(closing)
        for at_last in (False, True):
            late = [task for task in closing if not task.done()]
            for task in late:
                closing[task].hurry(at_last=at_last)
            if late:
                await asyncio.wait(late, timeout=_LAST_S)
        for task in closing:
            if task.done():
                tell_of_loss(task)

    def hurry(self) -> None:
        """Have a `close` that goes on do so as if its time was up."""
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())


def handles(consumer: object) -> None:
    """What runs from here on in this task is a handler of the consumer."""
    _HANDLED.set((*_HANDLED.get(), consumer))


def is_handling(consumers: Iterable[object]) -> bool:
    """Whether this runs on behalf of a handler of one of them."""
    handled = _HANDLED.get()
    return bool(handled) and any(each in handled for each in consumers)


def ending(work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
    """An end, which is no handler's part."""
    context = copy_context()
    context.run(_HANDLED.set, ())
    return asyncio.get_running_loop().create_task(work, context=context)


async def wait_for_end(end: "asyncio.Task[None]", hurry: Callable[[], object]) -> None:
    """Wait for it. Who is cancelled meanwhile does not wait any longer, and the end comes soon."""
    try:
        await asyncio.shield(end)
    except asyncio.CancelledError:
        if is_cancelled():
            hurry()
            raise
        # Else the end was hurried: it has given up what it waited for.


def tell_of_loss(end: "asyncio.Task[None]") -> None:
    """Nobody else hears of what an end came to."""
    if not end.cancelled() and isinstance(error := end.exception(), SluiceError):
        logger.warning("what was settled last could not be sent, and comes again: %s", error)
