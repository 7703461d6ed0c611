"""Statistics and anomalies per device and window of event time. Anomalies hardly affect the statistics."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from streaming.pipelines.readings import is_finite

# Makes the median absolute deviation of a normal distribution its standard deviation.
_MAD_TO_SIGMA: Final = 1.4826


def window_statistics(
    readings: DataFrame,
    *,
    window: str,
    late: str,
    k: float = 5.0,
    min_spread: float = 0.0,
    device: str = "device",
    time: str = "time",
    value: str = "value",
) -> DataFrame:
    """Group `readings` by `device` and tumbling `window` ("6 hours") of `time`, as a batch or a stream.

    The result has the columns `device`, `window_start`, `window_end`, `readings` (their number), `mean`, `minimum`,
    `maximum`, `median`, `spread` (the median absolute deviation, in the unit of the value) and `anomalies`: the
    readings further than `k` robust standard deviations from the median, as (time, value, score). The score is signed
    and counts these deviations. `min_spread` is the least spread: a constant value has spread 0, and without
    `min_spread` nothing is an anomaly then.

    A stream drops readings that arrive more than `late` after the newest. A reading that a device sends twice (QoS 1
    after a lost acknowledgement) counts once, because a window is a *set* of (time, value). Spark keeps the readings of
    a window in its state until the window closes, so choose windows accordingly.
    """
    known = readings.where(F.col(time).isNotNull() & is_finite(F.col(value)))
    reading = F.struct(F.col(value).cast("double").alias("value"), F.col(time).alias("time"))
    grouped = (
        known.withWatermark(time, late)
        .groupBy(F.window(F.col(time), window).alias("window"), F.col(device).alias("device"))
        .agg(F.sort_array(F.collect_set(reading)).alias("sorted"))
    )
    values = F.col("sorted.value")
    measured = grouped.withColumn("median", _median(values))
    deviations = F.array_sort(F.transform(values, lambda v: F.abs(v - F.col("median"))))
    measured = measured.withColumn("spread", _median(deviations))
    sigma = F.greatest(F.col("spread"), F.lit(float(min_spread))) * _MAD_TO_SIGMA
    return measured.select(
        "device",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        F.size("sorted").alias("readings"),
        (F.aggregate(values, F.lit(0.0), lambda total, v: total + v) / F.size("sorted")).alias("mean"),
        F.array_min(values).alias("minimum"),
        F.array_max(values).alias("maximum"),
        "median",
        "spread",
        _anomalies(F.col("sorted"), F.col("median"), sigma, k).alias("anomalies"),
    )


def _median(ordered: Column) -> Column:
    """Return the median of a sorted, non-empty array."""
    size = F.size(ordered)
    low = F.element_at(ordered, ((size + 1) / 2).cast("int"))  # 1 is the first
    high = F.element_at(ordered, (size / 2).cast("int") + 1)
    return (low + high) / 2


def _anomalies(ordered: Column, median: Column, sigma: Column, k: float) -> Column:
    """Return the readings further than k sigma from the median, in the order of time; none if sigma is 0."""
    far = F.filter(ordered, lambda r: (sigma > 0) & (F.abs(r["value"] - median) > k * sigma))
    scored = F.transform(
        far,
        lambda r: F.struct(
            r["time"].alias("time"), r["value"].alias("value"), ((r["value"] - median) / sigma).alias("score")
        ),
    )
    return F.array_sort(scored)
