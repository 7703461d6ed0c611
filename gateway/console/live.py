"""Live figures: one sampler for a node, and a stream of its samples for each person who looks.

The sampler reads the figures of the node every few seconds, and keeps those of the last hour. A stream is server-sent
events: the hour first, then each new sample. A viewer that is slow misses samples; nothing waits for it.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Final

import orjson
from aiohttp import web

from gateway.console.sessions import ConsoleSession
from gateway.management.methods import METHODS
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER, Manager, require
from gateway.management.surface import Management
from gateway.rpc.status import RequestError
from store.errors import StoreError

INTERVAL_S: Final = 5.0
_KEPT: Final = 720  # samples: an hour
MAX_VIEWERS: Final = 16
_WRITE_S: Final = 20.0  # for a viewer to take an event
_GET_FIGURES: Final = next(method for method in METHODS if method.request is pb.GetFiguresRequest)
_RATES: Final = ("messages_stored", "messages_received", "messages_sent", "bytes_received", "bytes_sent")
COLUMNS: Final = ("time", *_RATES, "connections")  # of a sample: seconds since 1970, rates per second, a number

Sample = tuple[float, ...]


class Sampler:
    """Reads the figures of a node while it runs."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._figures: deque[pb.Figures] = deque(maxlen=_KEPT)
        self._taken = asyncio.Event()  # replaced with each sample
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._taken.set()

    @property
    def latest(self) -> dict[str, float]:
        """The newest sample by the names of its columns; empty: there is none yet."""
        return dict(zip(COLUMNS, self._samples[-1], strict=True)) if self._samples else {}

    @property
    def samples(self) -> list[Sample]:
        return list(self._samples)

    def growth(self, field: str, seconds: float) -> int:
        """How much a total has grown in the last seconds."""
        if not self._figures:
            return 0
        newest = self._figures[-1]
        since = newest.time_ms - seconds * 1000
        oldest = next(each for each in self._figures if each.time_ms >= since)
        return max(int(getattr(newest, field) - getattr(oldest, field)), 0)

    async def next(self) -> None:
        """Wait for the next sample."""
        await self._taken.wait()

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except RequestError:  # no log is open here, or the node is busy: the chart has a gap
                self._figures.clear()
            await asyncio.sleep(INTERVAL_S)

    async def sample(self) -> None:
        """Take a sample now. Raises `RequestError`."""
        figures = await self._management.call(_GET_FIGURES, pb.GetFiguresRequest(), NODE_USER)
        assert isinstance(figures, pb.Figures)
        before = self._figures[-1] if self._figures else None
        self._figures.append(figures)
        elapsed = (figures.time_ms - before.time_ms) / 1000 if before is not None else 0.0
        if before is None or elapsed <= 0:
            return
        rates = [max(getattr(figures, name) - getattr(before, name), 0) / elapsed for name in _RATES]
        row = (figures.time_ms / 1000, *[round(rate, 1) for rate in rates], figures.connections)
        self._samples.append(row)
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()


class LiveStreams:
    """The streams of a node."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._viewers = 0
        self._is_stopped = False

    def stop(self) -> None:
        """End each stream with the next sample, or with the end of the sampler."""
        self._is_stopped = True

    async def serve(self, request: web.Request, session: ConsoleSession, manager: Manager) -> web.StreamResponse:
        """Stream samples until the viewer leaves, or may not see them any more."""
        if not await _may_look(manager):
            return web.Response(status=403, text="the live figures need the right to GET cluster:store")
        if self._viewers >= MAX_VIEWERS:
            text = f"{MAX_VIEWERS} pages with live figures are open: close one, or look again later"
            return web.Response(status=503, text=text, headers={"Retry-After": "60"})
        self._viewers += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await response.prepare(request)
            with suppress(ConnectionError, TimeoutError):
                await self._send_all(response, session, manager)
            return response
        finally:
            self._viewers -= 1

    async def _send_all(self, response: web.StreamResponse, session: ConsoleSession, manager: Manager) -> None:
        await _send(response, self._sampler.samples)
        while True:
            await self._sampler.next()
            if self._is_stopped or not await session.is_alive(time.monotonic()) or not await _may_look(manager):
                return
            await _send(response, self._sampler.samples[-1:])


async def _send(response: web.StreamResponse, samples: list[Sample]) -> None:
    async with asyncio.timeout(_WRITE_S):
        await response.write(b"data: " + orjson.dumps(samples) + b"\n\n")


async def _may_look(manager: Manager) -> bool:
    try:
        await require(manager, _GET_FIGURES, pb.GetFiguresRequest())
    except (RequestError, StoreError):
        return False
    return True
