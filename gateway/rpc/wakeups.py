"""Wakes long polls after commits, also after those of other gateways.

A commit wakes the waiters for the parent topics of its messages, for the dead-letter queues that it fills, and for the
groups whose messages it makes available again. A wake-up is a hint: the waiter reads the store again. While there are
no waiters, no commit comes here. Otherwise a commit costs one pass over its distinct topics, which ends as soon as all
awaited parent topics were found. A store in another process tells only of parent topics that are awaited.
"""

import asyncio
from typing import Final

from matcher.names import parent_of
from store.api import Commit, LogStore, dead_letter_queue
from store.commit_listeners import GROUPS, MESSAGES

_PARENT: Final = b"p"


class Wakeups:
    """Waiters by key: `p` and a parent topic, the name of a dead-letter queue, or `group_key`. The server's limit of
    concurrent calls bounds their number."""

    def __init__(self, store: LogStore) -> None:
        self._wants = store.wants
        self._waiting: dict[bytes, set[asyncio.Event]] = {}
        self._parents = 0  # keys that are parent topics
        self._listening = store.on_commit(self._committed, 0)  # to nothing while nobody waits

    def add(self, key: bytes, waiter: asyncio.Event) -> None:
        waiters = self._waiting.get(key)
        if waiters is None:
            waiters = self._waiting[key] = set()
            if key[:1] == _PARENT:
                self._parents += 1
                if self._wants is not None:
                    self._wants.add_parent(key[1:])
            self._listening.parts = MESSAGES | GROUPS
        waiters.add(waiter)

    def remove(self, key: bytes, waiter: asyncio.Event) -> None:
        waiters = self._waiting[key]
        waiters.discard(waiter)
        if not waiters:
            del self._waiting[key]
            if key[:1] == _PARENT:
                self._parents -= 1
                if self._wants is not None:
                    self._wants.remove_parent(key[1:])
            if not self._waiting:
                self._listening.parts = 0

    async def settled(self) -> None:
        """Wait until all commits from now on that concern a waiter wake it. Calls that the store answers in order, such
        as `pop`, need not wait for that. Raises `StoreError` when the store is lost meanwhile."""
        if self._wants is not None and not self._wants.is_settled:
            await self._wants.settled()

    def wake_all(self) -> None:
        for key in self._waiting:
            self._wake(key)

    def _committed(self, commit: Commit) -> None:
        if commit.missed_from >= 0:
            self.wake_all()
        for group in commit.dead_letters:
            self._wake(dead_letter_queue(group))
        for group in commit.again:
            self._wake(group_key(group))
        unseen = self._parents
        if not unseen:
            return
        for parent in commit.parents:
            self._wake(_PARENT + parent)
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
    """The key that wakes the members of a group, from whatever source they receive."""
    return b"g" + group


async def wait_until(waiter: asyncio.Event, deadline: float) -> bool:
    """Wait for `waiter` until `deadline` (loop time) and clear it. Returns False at the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            await waiter.wait()
    except TimeoutError:
        return False
    waiter.clear()
    return True
