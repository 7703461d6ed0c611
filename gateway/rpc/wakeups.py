"""Ends long polls: who waits for messages of a parent topic, or for dead letters of a group, hears of their commit, and
who waits as a member of a group of what comes again, whichever gateway it was given back by.

A wake-up is a hint: the waiter looks at the store again. Costs the ingest path nothing while nobody waits;
else one pass over the distinct topics of the commit that ends as soon as every awaited parent was seen.
"""

import asyncio
from typing import Final

from matcher.names import parent_of
from store.api import Commit, Store, dead_letter_queue
from store.commit_listeners import GROUPS, MESSAGES

_PARENT: Final = b"p"


class Wakeups:
    """Waiters by what they wait for: `p` and a parent topic, a dead-letter queue by name, or `group_key`. Bounded by
    the number of calls that the server admits."""

    def __init__(self, store: Store) -> None:
        self._waiting: dict[bytes, set[asyncio.Event]] = {}
        self._parents = 0  # of the keys
        store.on_commit(self._committed, MESSAGES | GROUPS)

    def add(self, key: bytes, waiter: asyncio.Event) -> None:
        waiters = self._waiting.get(key)
        if waiters is None:
            waiters = self._waiting[key] = set()
            self._parents += key[:1] == _PARENT
        waiters.add(waiter)

    def remove(self, key: bytes, waiter: asyncio.Event) -> None:
        waiters = self._waiting[key]
        waiters.discard(waiter)
        if not waiters:
            del self._waiting[key]
            self._parents -= key[:1] == _PARENT

    def wake_all(self) -> None:
        for key in self._waiting:
            self._wake(key)

    def _committed(self, commit: Commit) -> None:
        if not self._waiting:
            return
        if commit.missed_from >= 0:
            self.wake_all()
        for group in commit.dead_letters:
            self._wake(dead_letter_queue(group))
        for group in commit.again:
            self._wake(group_key(group))
        unseen = self._parents
        if not unseen:
            return
        seen: set[bytes] = set()
        for topic in {*commit.topics, *[moved.topic for moved in commit.moved]}:
            parent = parent_of(topic)
            if parent not in seen:
                seen.add(parent)
                if self._wake(_PARENT + parent):
                    unseen -= 1
                    if not unseen:
                        return

    def _wake(self, key: bytes) -> bool:
        waiters = self._waiting.get(key)
        if waiters is None:
            return False
        for waiter in waiters:
            waiter.set()
        return True


def group_key(group: bytes) -> bytes:
    """What wakes the members of a group, whatever they receive from."""
    return b"g" + group


async def wait_until(waiter: asyncio.Event, deadline: float) -> bool:
    """Wait for `waiter` until `deadline` (loop time); False when the time is up. Clears the waiter."""
    try:
        async with asyncio.timeout_at(deadline):
            await waiter.wait()
    except TimeoutError:
        return False
    waiter.clear()
    return True
