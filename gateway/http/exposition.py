"""The text of `/metrics`, written in slices: a node with many figures serves its devices meanwhile."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client import generate_latest
from prometheus_client.core import Metric

from gateway.http.shown import Slices


class Collector(Protocol):
    """Knows some metrics."""

    async def collect(self) -> Iterable[Metric]:
        """The metrics as they are now. One call at a time."""


class _One:
    """A metric as `generate_latest` wants it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


class Exposition:
    """All metrics of a page."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._collectors = collectors
        self._lock = asyncio.Lock()

    async def text(self) -> bytes:
        """The text. Calls at the same time follow one another."""
        async with self._lock:
            pieces: list[bytes] = []
            slices = Slices()
            for collector in self._collectors:
                for metric in await collector.collect():
                    pieces.append(generate_latest(_One(metric)))
                    await slices.rest()
            return b"".join(pieces)
