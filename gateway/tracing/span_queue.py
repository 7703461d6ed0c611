"""Spans on their way to a collector: a bounded queue, and a thread that sends what is in it.

The queue is full while the collector is away or slow. Then new spans are dropped and counted, and nobody waits.
"""

import logging
import threading
import time
from collections import deque
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

_BATCH: Final = 512  # spans of one request
_PAUSE_S: Final = 1.0  # that spans wait for others
_QUIET_S: Final = 60.0  # between two lines about a collector that is away
_STOP_S: Final = 2.0  # for the last spans
_MAX_TEXT: Final = 300  # characters of what the exporter says
_LIBRARY: Final = "opentelemetry"  # logger of the exporter, which has a line for each failure


class SpanQueue(SpanProcessor):
    """Sends ended spans with an exporter."""

    def __init__(self, exporter: SpanExporter, place: str, max_size: int) -> None:
        """place: the collector, for the log."""
        self.exported = 0  # spans that the collector has
        self.lost = 0  # spans of requests that failed
        self.dropped = 0  # spans for which there was no room
        self._exporter = exporter
        self._place = place
        self._max_size = max_size
        self._spans: deque[ReadableSpan] = deque()
        self._wake = threading.Event()
        self._is_stopping = False
        self._told_at = 0.0  # monotonic seconds of the last line about a failure; 0: all is well
        self._why = _FirstLine()
        library = logging.getLogger(_LIBRARY)
        library.handlers = [self._why]
        library.propagate = False
        self._thread = threading.Thread(target=self._run, name="sluice-spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        if self._is_stopping or len(self._spans) >= self._max_size:
            self.dropped += 1
            return
        self._spans.append(span)
        if len(self._spans) == _BATCH:
            self._wake.set()

    def stop(self) -> None:
        """Send what waits, for a moment at most. Blocks."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join(_STOP_S)
        self._exporter.shutdown()  # ends a request that is tried again
        self.dropped += len(self._spans)

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            while self._spans:
                self._export([self._spans.popleft() for _ in range(min(len(self._spans), _BATCH))])

    def _export(self, spans: list[ReadableSpan]) -> None:
        self._why.text = ""
        try:
            is_exported = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001  whatever the exporter meets, the next spans are tried
            is_exported, self._why.text = False, repr(error)
        if is_exported:
            self.exported += len(spans)
            if self._told_at:
                self._told_at = 0.0
                log.info("spans go to %s again", self._place)
            return
        self.lost += len(spans)
        now = time.monotonic()
        if not self._told_at or now - self._told_at >= _QUIET_S:
            self._told_at = now
            log.warning(
                "spans cannot be sent to %s and are dropped: %s", self._place, self._why.text or "it does not answer"
            )


class _FirstLine(logging.Handler):
    """Keeps the exporter's first line about a request, which says why it failed. Later ones say that it did again."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()[:_MAX_TEXT]
