"""Ends long polls: whoever waits at the end of a parent topic hears when a message is committed to it.

A wake-up is a hint: the waiter looks at the store again. Costs the ingest path nothing while nobody waits;
else one pass over the distinct topics of the commit that ends as soon as every awaited parent was seen.
"""

import asyncio

from matcher.names import parent_of
from store.api import Commit, Store


class Wakeups:
    """Waiters by parent topic. Bounded by the number of calls that the server admits."""

    def __init__(self, store: Store) -> None:
        self._waiting: dict[bytes, set[asyncio.Event]] = {}
        store.on_commit(self._committed)

    def add(self, parent: bytes, waiter: asyncio.Event) -> None:
        self._waiting.setdefault(parent, set()).add(waiter)

    def remove(self, parent: bytes, waiter: asyncio.Event) -> None:
        waiters = self._waiting[parent]
        waiters.discard(waiter)
        if not waiters:
            del self._waiting[parent]

    def wake_all(self) -> None:
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.set()

    def _committed(self, commit: Commit) -> None:
        if not self._waiting:
            return
        unseen = set(self._waiting)
        for topic in {*commit.topics, *[moved.topic for moved in commit.moved]}:
            parent = parent_of(topic)
            if parent in unseen:
                unseen.discard(parent)
                for waiter in self._waiting[parent]:
                    waiter.set()
                if not unseen:
                    return


async def wait_until(waiter: asyncio.Event, deadline: float) -> bool:
    """Wait for `waiter` until `deadline` (loop time); False when the time is up. Clears the waiter."""
    try:
        async with asyncio.timeout_at(deadline):
            await waiter.wait()
    except TimeoutError:
        return False
    waiter.clear()
    return True
