"""Waits for conditions. One limit for all of them, long enough for a machine that is busy with other work."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 60.0  # less than the limit of a whole test in pyproject.toml
_TURNS: Final = 100  # of the loop before a wait begins to sleep


def patience() -> asyncio.Timeout:
    """Limit a block that waits for what another task does: `async with patience(): …`."""
    return asyncio.timeout(PATIENCE_S)


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition is true: `await until(lambda: store.appends == 1)`. Raises TimeoutError.

    The condition is checked in each turn of the loop at first, and a thousand times a second later.
    """
    turns = 0
    async with patience():
        while not condition():
            await asyncio.sleep(0 if turns < _TURNS else 0.001)
            turns += 1


def block_until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition is true, for tests without a loop. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)
