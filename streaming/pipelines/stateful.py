"""What pipelines that keep state per device have in common.

Times cross to Spark's Python side as microseconds since 1970: Python's own end with the year 9999, and
a device may say any.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

# A query with such a pipeline needs this: Spark's other state store has neither several values per key nor timers.
STATE_CONFIG: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}

# No reading is of another time: it would be the newest of its device for ever, or carry the watermark away.
TIMES: Final = "time BETWEEN TIMESTAMP '1970-01-02 00:00:00Z' AND TIMESTAMP '9000-01-01 00:00:00Z'"

_US: Final = 1_000_000


def micros(time: Column) -> Column:
    """A timestamp as Python takes it."""
    return F.unix_micros(time)


def seconds_of(micros: int) -> float:
    """Seconds since 1970."""
    return micros / _US


def micros_of(seconds: float) -> int:
    return round(seconds * _US)


def with_times(rows: DataFrame, *names: str) -> DataFrame:
    """Rows that come of Python, with these columns as timestamps again."""
    return rows.withColumns({name: F.timestamp_micros(name) for name in names})
