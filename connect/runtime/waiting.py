"""Waiting for work, or for the request to stop."""

import asyncio
from typing import Any


async def first_of(work: "asyncio.Future[Any]", stopping: asyncio.Event, timeout: float | None = None) -> None:
    """Wait until the work is done, the event is set, or the time (in seconds) is over. If the caller is cancelled, the
    work is cancelled, too."""
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((work, stop), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel()
        raise
    finally:
        stop.cancel()
