"""The figures of `sluice stream`."""

import urllib.error
import urllib.request

import pytest

pytest.importorskip("pyspark")

from sluice.commands.analytics.stream_metrics import MetricsServer, StreamMetrics
from tests.streaming.test_running import PROGRESS


def test_figures_are_served_and_add_up() -> None:
    metrics = StreamMetrics("windows")
    for _ in range(2):
        metrics.add({**PROGRESS, "observedMetrics": {"readings": {"usable": 7, "empty": 2}}}, 1_767_225_600.5)
    server = MetricsServer(metrics, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = answer.read().decode().splitlines()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/")
    finally:
        server.close()
    for line in (
        'sluice_stream_batches_total{pipeline="windows"} 2',
        'sluice_stream_rows_total{pipeline="windows"} 2400',
        'sluice_stream_late_total{pipeline="windows"} 4',
        'sluice_stream_lag{pipeline="windows"} 12',
        'sluice_stream_state_rows{pipeline="windows"} 40',
        'sluice_stream_batch_timestamp_seconds{pipeline="windows"} 1767225600.5',
        'sluice_stream_rejected_total{pipeline="windows",reason="empty"} 4',
        'sluice_stream_rejected_total{pipeline="windows",reason="null"} 0',
    ):
        assert line in lines
