"""The topic filters that a gateway watches. The store sends it only commits with messages that match one.

Changes are sent before all later calls. So a caller that adds a filter and then reads the end of a queue gets each
message behind that end. Callers without a queue wait until the store knows the filter (`settled`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from store.errors import StoreError
from store.remote.calls import encode
from store.remote.wire import NUMBER

_MOST: Final = 1 << 30  # the highest number of a change; 1 follows


class RemoteWants:
    """Watched filters, with the number of their watchers. `send` sends a change."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._counts: dict[bytes, int] = {}
        self._added: dict[bytes, None] = {}  # since the last change that was sent
        self._removed: dict[bytes, None] = {}
        self._scheduled = False
        self._sent = 0  # number of the last change
        self._known = 0  # number of the last change that the store knows
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # for a change, in order

    def add(self, topic_filter: bytes) -> None:
        count = self._counts.get(topic_filter, 0)
        self._counts[topic_filter] = count + 1
        if not count:
            if topic_filter in self._removed:
                del self._removed[topic_filter]
            else:
                self._added[topic_filter] = None
            self._schedule()

    def remove(self, topic_filter: bytes) -> None:
        count = self._counts.get(topic_filter, 0)
        if count > 1:
            self._counts[topic_filter] = count - 1
        elif count:
            del self._counts[topic_filter]
            if topic_filter in self._added:
                del self._added[topic_filter]
            else:
                self._removed[topic_filter] = None
            self._schedule()

    def flush(self) -> None:
        """Send the changes now."""
        self._scheduled = False
        if self._added or self._removed:
            self._sent = self._sent % _MOST + 1
            self._send(NUMBER.pack(self._sent) + encode((list(self._added), list(self._removed))))
            self._added, self._removed = {}, {}

    @property
    def is_settled(self) -> bool:
        """Whether the store knows all changes."""
        return self._known == self._sent and not self._added

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
        """Send all filters to a restarted store, which sends all commits until it gets them."""
        self._added, self._removed = {}, {}
        self._sent = self._sent % _MOST + 1
        self._send(NUMBER.pack(self._sent) + encode((list(self._counts), [])))

    def fail(self, error: StoreError) -> None:
        """Fail the callers that wait in `settled`."""
        waiting, self._waiting = self._waiting, []
        for _, known in waiting:
            if not known.done():
                known.set_exception(error)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
