"""What a gateway wants to be told of, of a store that tells nothing else: topic filters, each as often as it is wanted.

Changes go ahead of everything that is asked behind them, so whoever asks for the end of a queue after `add` misses
nothing that comes behind that end. Who has no queue to ask waits until the store knows (`settled`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from store.errors import StoreError
from store.remote.calls import encode
from store.remote.wire import NUMBER

_MOST: Final = 1 << 30  # changes that are numbered before the numbers begin anew


class RemoteWants:
    """The filters by how often they are wanted. `send` has changes go."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._counts: dict[bytes, int] = {}
        self._added: dict[bytes, None] = {}  # since the last change that was sent
        self._removed: dict[bytes, None] = {}
        self._scheduled = False
        self._sent = 0  # number of the last change
        self._known = 0  # of the last that the store has heard
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
        """Have what has changed go now."""
        self._scheduled = False
        if self._added or self._removed:
            self._sent = self._sent % _MOST + 1
            self._send(NUMBER.pack(self._sent) + encode((list(self._added), list(self._removed))))
            self._added, self._removed = {}, {}

    @property
    def is_settled(self) -> bool:
        """Whether the store knows of everything."""
        return self._known == self._sent and not self._added

    async def settled(self) -> None:
        """Wait until the store knows of what is wanted now."""
        self.flush()
        if not self.is_settled:
            known = self._loop.create_future()
            self._waiting.append((self._sent, known))
            await known

    def heard(self, body: bytes) -> None:
        """The store knows of a change, and of those before it."""
        self._known = NUMBER.unpack(body)[0]
        while self._waiting:
            number, known = self._waiting[0]
            if number != self._known and 0 < number - self._known < _MOST // 2:
                return
            del self._waiting[0]
            if not known.done():
                known.set_result(None)

    def resume(self) -> None:
        """The store is another one now, which tells everything until it hears what is wanted."""
        self._added, self._removed = {}, {}
        self._sent = self._sent % _MOST + 1
        self._send(NUMBER.pack(self._sent) + encode((list(self._counts), [])))

    def fail(self, error: StoreError) -> None:
        """The store is not there: nobody need wait for it."""
        waiting, self._waiting = self._waiting, []
        for _, known in waiting:
            if not known.done():
                known.set_exception(error)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)
