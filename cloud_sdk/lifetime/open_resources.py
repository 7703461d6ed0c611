"""The resources of a client that are open, and are closed with it."""

import asyncio
from contextlib import suppress
from typing import Final, Protocol

from cloud_sdk.errors import ClientClosed
from cloud_sdk.lifetime.closing import called_from_handler_of, create_closing_task, log_lost_settlements

_LAST_S: Final = 1.0  # for a resource to end after `stop_waiting`


class Resource(Protocol):
    """A part of a client that is open until it is closed: a consumer, a producer, transaction checks."""

    async def close(self) -> None: ...

    def stop_waiting(self, *, for_node: bool) -> None:
        """Have a running `close` cancel handlers; `for_node`: and give up on answers of the node."""


class OpenResources:
    """The open resources of one client."""

    def __init__(self) -> None:
        self._open: dict[Resource, None] = {}
        self.is_closed = False
        self._timeout: asyncio.Timeout | None = None

    def add(self, resource: Resource) -> None:
        """Close the resource with the client, until `discard`. Raises `ClientClosed`."""
        self.require_open()
        self._open[resource] = None

    def require_open(self) -> None:
        """Raise `ClientClosed` if the client is closed."""
        if self.is_closed:
            raise ClientClosed("the client is closed")

    def discard(self, resource: Resource) -> None:
        """Forget a resource that is closed."""
        self._open.pop(resource, None)

    @property
    def is_called_from_handler(self) -> bool:
        """Whether the caller runs on behalf of a handler of an open resource."""
        return called_from_handler_of(self._open)

    async def close_callers(self) -> None:
        """Close the resources whose handler calls this, so that they start no other handler. `close` has to follow."""
        for each in [each for each in self._open if called_from_handler_of((each,))]:
            await each.close()

    async def close(self, seconds: float) -> None:
        """Close everything. After `seconds`, cancel handlers; a moment later, give up on answers of the node."""
        self.is_closed = True
        closing = {create_closing_task(each.close()): each for each in self._open}
        if not closing:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds) as self._timeout:
                await asyncio.wait(closing)
        for for_node in (False, True):
            late = [task for task in closing if not task.done()]
            for task in late:
                closing[task].stop_waiting(for_node=for_node)
            if late:
                await asyncio.wait(late, timeout=_LAST_S)
        for task in closing:
            if task.done():
                log_lost_settlements(task)

    def stop_waiting(self) -> None:
        """Have a running `close` continue as if its time were over."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
