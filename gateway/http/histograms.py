"""Histograms of the store as Prometheus has them."""

from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

from store.histogram import Histogram


def histogram_family(name: str, text: str, histogram: Histogram, per_unit: int = 1) -> HistogramMetricFamily:
    """The metric of a histogram. per_unit: of its values, in one of what is shown: 1000 for seconds of milliseconds."""
    family = HistogramMetricFamily(name, text, labels=())
    add_histogram(family, (), histogram, per_unit)
    return family


def add_histogram(
    family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram, per_unit: int = 1
) -> None:
    """Add a histogram to a metric."""
    buckets: list[tuple[str, float]] = []
    up_to = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        up_to += count
        buckets.append((repr(bound / per_unit), up_to))
    buckets.append(("+Inf", up_to + histogram.counts[-1]))
    family.add_metric(labels, buckets, histogram.total / per_unit)
