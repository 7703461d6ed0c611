"""Counting, keeping and replaying what a pipeline leaves out (`readings.parsed`).

A kept reject is a message on TOPIC/reason, or a row of Parquet files. It has the payload, or the element of an array,
and says where the record is in the log. `replayed` makes records of rejects again, as the source gave them.
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from streaming.pipelines.readings import Reason

METRICS: Final = "readings"  # the name of the observed metrics
USABLE: Final = "usable"  # of these metrics: the readings that a pipeline uses. The others are named like their reasons
SOURCE_COLUMNS: Final = ("topic", "levels", "payload", "client_id", "partition", "offset", "stored_at", "position")
# Columns of a Parquet file of rejects.
SCHEMA: Final = (
    "pipeline string, reason string, field string, topic string, `partition` int, `offset` long, position long, "
    "`index` int, stored_at timestamp, client_id string, payload binary"
)
_PREFIX: Final = "reject-"  # of user properties
_LARGEST: Final = 8 << 20  # bytes of a payload; a gRPC call takes 16 MiB
_NUMBERS: Final = {"partition": "int", "offset": "long", "position": "long", "index": "int"}


def counted(rows: DataFrame, name: str | Observation = METRICS) -> DataFrame:
    """Let Spark count the usable readings and the rejects of `readings.parsed` by reason, in its observed metrics: in
    the progress of a stream, or by an `Observation` of a batch."""
    reason = F.col("reject.reason")
    rejected = (F.count_if(reason == each.value).alias(each.value) for each in Reason)
    return rows.observe(name, F.count_if(reason.isNull()).alias(USABLE), *rejected)


def rejected(progress: Mapping[str, Any], name: str = METRICS) -> dict[str, int]:
    """Return the number of rejects in a micro-batch by reason, without zeros. `progress` is
    `StreamingQuery.lastProgress` or an element of `recentProgress`."""
    metrics = (progress.get("observedMetrics") or {}).get(name)
    if metrics is None:
        return {}
    counts = metrics.asDict() if hasattr(metrics, "asDict") else dict(metrics)
    return {each.value: counts[each.value] for each in Reason if counts.get(each.value)}


def usable(rows: DataFrame, *others: str) -> DataFrame:
    """Return the usable readings of `readings.parsed` as columns, with `others` of the source."""
    return rows.where("reject IS NULL").select("reading.*", *others)


def reject_rows(rows: DataFrame, pipeline: str) -> DataFrame:
    """Return the rejects of `readings.parsed` over all of `SOURCE_COLUMNS`, in the columns of `SCHEMA`."""
    payload = F.when(F.col("reject.index").isNull(), F.col("payload")).otherwise(F.col("reject.item").cast("binary"))
    index = F.col("reject.index")
    if "index" in rows.columns:  # rejects that are replayed
        index = F.coalesce(index, F.col("index"))
    return rows.where("reject IS NOT NULL").select(
        F.lit(pipeline).alias("pipeline"),
        F.col("reject.reason").alias("reason"),
        F.col("reject.field").alias("field"),
        "topic",
        "partition",
        "offset",
        "position",
        index.alias("index"),
        "stored_at",
        "client_id",
        payload.alias("payload"),
    )


def reject_messages(rejects: DataFrame, topic: str) -> DataFrame:
    """Convert `reject_rows` to messages for the sink, on `topic`/reason, with the other columns as user properties. A
    payload that a node may refuse for its size is left out: the position says where it is in the log."""
    names = ("pipeline", "reason", "field", "topic", "partition", "offset", "position", "index", "client_id")
    texts: list[tuple[str, Column]] = [(name, F.col(name).cast("string")) for name in names]
    texts.append(("stored_at", F.unix_millis("stored_at").cast("string")))
    pairs = [part for name, column in texts for part in (F.lit(_PREFIX + name.replace("_", "-")), column)]
    return rejects.select(
        F.concat(F.lit(f"{topic}/"), F.col("reason")).alias("topic"),
        F.when(F.octet_length("payload") <= _LARGEST, F.col("payload")).alias("payload"),
        F.create_map(*pairs).alias("properties"),
    )


def replayed(records: DataFrame, pipeline: str) -> DataFrame:
    """Return the rejects of a pipeline among `records` with `SOURCE_COLUMNS` as the rejected records had them, and
    `index`. `records` are messages (`payload` and `properties`) or rows of `SCHEMA`."""
    rows = records
    if "properties" in records.columns:

        def named(name: str) -> Column:
            text = F.try_element_at("properties", F.lit(_PREFIX + name.replace("_", "-")))
            return text.try_cast(_NUMBERS[name]) if name in _NUMBERS else text

        names = ("pipeline", "topic", "partition", "offset", "position", "index", "client_id")
        stored = F.timestamp_millis(named("stored_at").try_cast("long"))
        columns = [named(name).alias(name) for name in names]
        rows = records.select(*columns, stored.alias("stored_at"), "payload")
    rows = rows.where(F.col("pipeline") == pipeline)
    return rows.select(
        "topic",
        F.split("topic", "/").alias("levels"),
        *(name for name in SOURCE_COLUMNS if name not in ("topic", "levels")),
        "index",
    )
