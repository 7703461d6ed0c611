"""Carries a link over one connection until it breaks.

Both sides run this: one task writes the link's messages, and one reads. An idle side sends heartbeats, so that
silence means that the other side or the network has failed. A part of a message is no silence: a large one may take
longer than that over a slow network.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from store.remote.config import RemoteConfig
from store.remote.transport.link import Link

Read = Callable[[], Awaitable[object]]  # bytes, or something else when the stream has ended
Write = Callable[[bytes], Awaitable[None]]
OnMessage = Callable[[bytes], Awaitable[None]]

_LEAST_BYTES: Final = 64 << 10  # of a message that arrive in `silence_s`; with fewer, the other side counts as silent
_LOOKS: Final = 4  # in `silence_s`


def _ignore() -> None:
    """Nobody has to hear of it."""


class Stream:
    """One stream. Call `wake` when the link has something to send."""

    def __init__(
        self,
        link: Link,
        config: RemoteConfig,
        read: Read,
        write: Write,
        on_message: OnMessage,
        received: Callable[[], int],
        on_busy: Callable[[], None] = _ignore,
    ) -> None:
        """received: bytes that have arrived, also those of incomplete messages. on_busy: called once in a while when
        much has arrived from the other side, or it has acknowledged much."""
        self._link = link
        self._config = config
        self._read = read
        self._write = write
        self._on_message = on_message  # called with each new message; no other is read until it returns
        self._received = received
        self._on_busy = on_busy
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._heard_at = self._loop.time()
        self._is_handling = False
        self._tasks: list[asyncio.Task[None]] = []
        self._stops = False  # end when everything is sent
        self._is_over = False

    def wake(self) -> None:
        self._ready.set()

    def finish(self) -> None:
        """End when everything is sent."""
        self._stops = True
        self._ready.set()

    def end(self) -> None:
        """End now, or as soon as it runs."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    async def run(self) -> BaseException | None:
        """Run until the stream ends or breaks. Returns the error that broke it."""
        if self._is_over:
            return None
        tasks = self._tasks = [self._loop.create_task(step) for step in (self._send(), self._receive(), self._watch())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        return next((end for end in ends if isinstance(end, Exception)), None)

    async def _send(self) -> None:
        link, ready = self._link, self._ready
        while True:
            message = link.next()
            if message is None:
                if self._stops and not link.waiting_bytes:
                    return
                ready.clear()
                beat = self._loop.call_later(self._config.heartbeat_s, ready.set)
                await ready.wait()
                if self._loop.time() >= beat.when():
                    message = link.next() or link.acknowledgement()
                beat.cancel()
            if message is not None:
                await self._write(message)

    async def _receive(self) -> None:
        link = self._link
        while isinstance(message := await self._read(), bytes):
            kept = link.kept_bytes
            is_new = link.accept(message)
            if is_new:
                self._is_handling = True
                await self._on_message(message)
                self._is_handling = False
            self._heard_at = self._loop.time()
            if link.owes or (link.waiting_bytes and link.kept_bytes < kept):
                self._ready.set()

    async def _watch(self) -> None:
        loop, link, silence = self._loop, self._link, self._config.silence_s
        busy = self._received() + link.delivered_bytes
        heard_at, heard = self._heard_at, self._received()
        while True:
            left = heard_at + silence - loop.time()
            await asyncio.sleep(min(left, silence / _LOOKS) if left > 0 else silence / _LOOKS)
            received = self._received()
            before, busy = busy, received + link.delivered_bytes
            if busy - before >= _LEAST_BYTES // _LOOKS:
                self._on_busy()
            if self._heard_at > heard_at or self._is_handling:
                heard_at, heard = self._heard_at, received
            elif loop.time() - heard_at >= silence:
                if received - heard < _LEAST_BYTES:
                    raise TimeoutError(f"nothing was heard for {silence} s")
                heard_at, heard = loop.time(), received
