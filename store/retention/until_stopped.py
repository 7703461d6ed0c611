"""Waiting for a thread whose work nobody needs any more when the store stops."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from store.errors import StoreClosed

T = TypeVar("T")


async def until_stopped(stopped: asyncio.Event, work: Awaitable[T]) -> T:
    """The result of `work`. Raises `StoreClosed` when `stopped` is set before that: the work goes on in its thread."""
    working = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((working, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
    if working.done():
        return working.result()
    working.add_done_callback(lambda done: done.cancelled() or done.exception())
    raise StoreClosed("the store is closing")
