"""What a gateway watches: topic filters, of whose messages the store sends it commits, and parent topics, of which the
store only tells it that they have new messages.

Changes are sent before all later calls. So a caller that adds a name and then reads the end of a queue hears of each
message behind that end. Callers without a queue wait until the store knows the name (`settled`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from store.errors import StoreError
from store.remote.wire.calls import encode
from store.remote.wire.layout import NUMBER

_MOST: Final = 1 << 30  # the highest number of a change; 1 follows
_IDLE_SECONDS: Final = 10.0  # between two looks for parent topics that nobody watches
_MAX_IDLE: Final = 1024  # parent topics that are watched for nobody

Change = tuple[list[bytes], list[bytes]]  # added names, removed names


class _Watched:
    """Watched names, with the number of their watchers, and how they have changed since the last change was sent."""

    __slots__ = ("added", "counts", "removed")

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.added: dict[bytes, None] = {}
        self.removed: dict[bytes, None] = {}

    def add(self, name: bytes) -> bool:
        """Returns whether the name is new."""
        count = self.counts.get(name)
        self.counts[name] = (count or 0) + 1
        if count is not None:
            return False
        if name in self.removed:
            del self.removed[name]
        else:
            self.added[name] = None
        return True

    def forget(self, name: bytes) -> None:
        """Watch a name no longer."""
        del self.counts[name]
        if name in self.added:
            del self.added[name]
        else:
            self.removed[name] = None

    def take(self) -> Change:
        change = list(self.added), list(self.removed)
        self.added, self.removed = {}, {}
        return change


class RemoteWants:
    """Watched filters and parent topics. `send` sends a change."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._filters = _Watched()
        self._parents = _Watched()
        # Parent topics without a watcher (False: since the last look). They stay for a while: long polls come again.
        self._idle: dict[bytes, bool] = {}
        self._timer: asyncio.TimerHandle | None = None  # of the next look
        self._scheduled = False
        self._sent = 0  # number of the last change
        self._known = 0  # number of the last change that the store knows
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # for a change, in order

    def add(self, topic_filter: bytes) -> None:
        if self._filters.add(topic_filter):
            self._schedule()

    def remove(self, topic_filter: bytes) -> None:
        count = self._filters.counts.get(topic_filter, 0)
        if count > 1:
            self._filters.counts[topic_filter] = count - 1
        elif count:
            self._filters.forget(topic_filter)
            self._schedule()

    def add_parent(self, parent: bytes) -> None:
        self._idle.pop(parent, None)
        if self._parents.add(parent):
            self._schedule()

    def remove_parent(self, parent: bytes) -> None:
        self._parents.counts[parent] -= 1
        if self._parents.counts[parent]:
            return
        if len(self._idle) >= _MAX_IDLE:
            self._parents.forget(parent)
            self._schedule()
            return
        self._idle[parent] = False
        if self._timer is None:
            self._timer = self._loop.call_later(_IDLE_SECONDS, self.forget_idle)

    def forget_idle(self) -> None:
        """Watch the parent topics no longer that nobody has watched since the last call."""
        if self._timer is not None:
            self._timer.cancel()
        for parent in [parent for parent, was_idle in self._idle.items() if was_idle]:
            del self._idle[parent]
            self._parents.forget(parent)
            self._schedule()
        self._idle = dict.fromkeys(self._idle, True)
        self._timer = self._loop.call_later(_IDLE_SECONDS, self.forget_idle) if self._idle else None

    def flush(self) -> None:
        """Send the changes now."""
        self._scheduled = False
        filters, parents = self._filters, self._parents
        if filters.added or filters.removed or parents.added or parents.removed:
            self._send_change(filters.take(), parents.take())

    @property
    def is_settled(self) -> bool:
        """Whether the store knows all names."""
        return self._known == self._sent and not self._filters.added and not self._parents.added

    async def settled(self) -> None:
        """Wait until the store knows all changes of before."""
        self.flush()
        if not self.is_settled:
            known = self._loop.create_future()
            self._waiting.append((self._sent, known))
            await known

    def heard(self, body: bytes) -> None:
        """Handle the store's answer that it knows a change, and all changes before."""
        self._known = NUMBER.unpack(body)[0]
        while self._waiting:
            number, known = self._waiting[0]
            if number != self._known and 0 < number - self._known < _MOST // 2:
                return
            del self._waiting[0]
            if not known.done():
                known.set_result(None)

    def resume(self) -> None:
        """Send all names to a restarted store, which sends all commits until it gets them."""
        self._filters.take()
        self._parents.take()
        self._send_change((list(self._filters.counts), []), (list(self._parents.counts), []))

    def fail(self, error: StoreError) -> None:
        """Fail the callers that wait in `settled`."""
        waiting, self._waiting = self._waiting, []
        for _, known in waiting:
            if not known.done():
                known.set_exception(error)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_change(self, filters: Change, parents: Change) -> None:
        self._sent = self._sent % _MOST + 1
        self._send(NUMBER.pack(self._sent) + encode((*filters, *parents)))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
