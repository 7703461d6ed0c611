"""Helpers for pipelines that keep state per device.

Times are passed to Python as microseconds since 1970, because `datetime` ends with the year 9999 and a device may send
any time.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

# Required by these pipelines: Spark's default state store supports neither several values per key nor timers.
STATE_CONFIG: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}

# Readings of other times are dropped: one would stay the newest of its device for ever, or advance the watermark.
TIMES: Final = "time BETWEEN TIMESTAMP '1970-01-02 00:00:00Z' AND TIMESTAMP '9000-01-01 00:00:00Z'"

_US: Final = 1_000_000


def micros(time: Column) -> Column:
    """Convert a timestamp to microseconds since 1970, for Python."""
    return F.unix_micros(time)


def seconds_of(micros: int) -> float:
    """Convert microseconds since 1970 to seconds."""
    return micros / _US


def micros_of(seconds: float) -> int:
    return round(seconds * _US)


def with_times(rows: DataFrame, *names: str) -> DataFrame:
    """Convert columns of microseconds since 1970, in rows from Python, to timestamps."""
    return rows.withColumns({name: F.timestamp_micros(name) for name in names})
