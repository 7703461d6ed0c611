"""Figures of `sluice stream` for Prometheus, from the progress of its query."""

import socket
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from streaming.pipelines.readings import Reason
from streaming.pipelines.rejects import rejected
from streaming.progress import lag, late, skipped

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_S: Final = 5.0  # for a client to send its request: they are answered one after the other


class StreamMetrics:
    """Counts since the start of the process."""

    def __init__(self, pipeline: str) -> None:
        self._label = f'pipeline="{pipeline}"'
        self._lock = threading.Lock()
        self._batches = self._rows = self._late = self._lag = self._lost = self._state = 0
        self._ended_s = 0.0
        self._rejected: Counter[str] = Counter({reason.value: 0 for reason in Reason})

    def add(self, progress: Mapping[str, Any], now_s: float) -> None:
        """Add a micro-batch that has ended."""
        with self._lock:
            self._batches += 1
            self._rows += progress["numInputRows"]
            self._late += late(progress)
            self._rejected.update(rejected(progress))
            self._lag, self._lost = lag(progress), skipped(progress)
            self._state = sum(state.get("numRowsTotal", 0) for state in progress.get("stateOperators") or ())
            self._ended_s = now_s

    def text(self) -> str:
        """Return all figures in the text format of Prometheus."""
        with self._lock:
            figures: list[tuple[str, str, float]] = [
                ("sluice_stream_batches_total", "counter", self._batches),
                ("sluice_stream_rows_total", "counter", self._rows),
                ("sluice_stream_late_total", "counter", self._late),
                ("sluice_stream_lost_messages", "gauge", self._lost),
                ("sluice_stream_lag", "gauge", self._lag),
                ("sluice_stream_state_rows", "gauge", self._state),
                ("sluice_stream_batch_timestamp_seconds", "gauge", self._ended_s),
            ]
            rejects = sorted(self._rejected.items())
        lines = [line for name, kind, value in figures for line in (f"# TYPE {name} {kind}", self._line(name, value))]
        name = "sluice_stream_rejected_total"
        lines.append(f"# TYPE {name} counter")
        lines += [self._line(name, count, f',reason="{reason}"') for reason, count in rejects]
        return "\n".join(lines) + "\n"

    def _line(self, name: str, value: float, labels: str = "") -> str:
        return f"{name}{{{self._label}{labels}}} {value}"


class MetricsServer:
    """Serves `GET /metrics` in a thread."""

    def __init__(self, metrics: StreamMetrics, host: str, port: int) -> None:
        """Raises `OSError` if the address is not free."""
        self._server = _Server((host, port), _handler(metrics))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(HTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


def _handler(metrics: StreamMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = metrics.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", _TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log no requests."""

    return Handler
