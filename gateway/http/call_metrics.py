"""Metrics of calls, by method and code."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from gateway.http.histograms import add_histogram
from gateway.observe.calls import Calls


class HttpMetrics:
    """Requests of the HTTP port of this process."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def collect(self) -> Iterable[Metric]:
        labels = ("method", "path")
        ended = CounterMetricFamily("sluice_http_requests", "Requests that have ended", labels=(*labels, "code"))
        times = HistogramMetricFamily("sluice_http_request_seconds", "Time of a request", labels=labels)
        for (method, code), count in self._calls.ended.items():
            ended.add_metric([*method.split(" "), code], count)
        for method, histogram in self._calls.times.items():
            add_histogram(times, method.split(" "), histogram, 1_000_000)
        return ended, times


def grpc_metrics(calls: Mapping[str, Calls], labels: list[str]) -> Iterable[Metric]:
    """Calls of gRPC by gateway. labels: `gateway`, or none."""
    ended = CounterMetricFamily("sluice_grpc_calls", "Calls that have ended", labels=[*labels, "method", "code"])
    text = "Time of a call, waiting for messages included; without streams"
    times = HistogramMetricFamily("sluice_grpc_call_seconds", text, labels=[*labels, "method"])
    for gateway, each in calls.items():
        own = [gateway] * len(labels)
        for (method, code), count in each.ended.items():
            ended.add_metric([*own, method, code], count)
        for method, histogram in each.times.items():
            add_histogram(times, [*own, method], histogram, 1_000_000)
    return ended, times
