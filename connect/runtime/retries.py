"""Pauses between attempts, and their end, as `errors.retry.*` say."""

import asyncio
import random
from typing import Final

from connect.api import RetriableError, Settings

_FIRST_S: Final = 0.3  # as Kafka Connect


class Stopped(Exception):
    """The task is asked to stop while it waits."""


class Retry:
    """The attempts of one call."""

    def __init__(self, common: Settings, stopping: asyncio.Event) -> None:
        """common: the settings that all connectors have."""
        timeout_ms, longest_ms = common["errors.retry.timeout"], common["errors.retry.delay.max.ms"]
        self._stopping = stopping
        self._longest_s = longest_ms / 1000
        self._pause_s = min(_FIRST_S, self._longest_s)
        self._until = None if timeout_ms < 0 else asyncio.get_running_loop().time() + timeout_ms / 1000

    async def pause(self, error: Exception) -> bool:
        """Wait before the next attempt. Returns False if there is none. Raises `Stopped`."""
        asked_s = error.retry_after_s if isinstance(error, RetriableError) else None
        pause_s = self._pause_s * random.uniform(0.8, 1.2) if asked_s is None else min(asked_s, self._longest_s)
        self._pause_s = min(self._pause_s * 2, self._longest_s)
        if self._until is not None and asyncio.get_running_loop().time() + pause_s > self._until:
            return False
        await sleep(pause_s, self._stopping)
        return True


async def sleep(seconds: float, stopping: asyncio.Event) -> None:
    """Sleep. Raises `Stopped` as soon as the task is asked to stop."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return
    raise Stopped
