"""What pipelines that keep state per device have in common."""

from datetime import UTC, datetime
from typing import Final

# A query with such a pipeline needs this: Spark's other state store has neither several values per key nor timers.
STATE_CONFIG: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}

# What Python can count as seconds: one reading with a time beyond would end the query, and again after each start.
TIMES: Final = "time BETWEEN TIMESTAMP '1970-01-02 00:00:00Z' AND TIMESTAMP '9000-01-01 00:00:00Z'"


def seconds_of(time: datetime) -> float:
    """Seconds since 1970 of a timestamp as Spark's Python side hands it over: local time without a zone."""
    return time.timestamp()


def timestamp_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
