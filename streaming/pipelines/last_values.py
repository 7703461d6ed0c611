"""The newest value of each field of a device: a last-value table, or device shadow."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

ORDER: Final = ("partition", "offset")  # decides between readings of one time


def last_values(readings: DataFrame, *, device: str = "device", time: str = "time") -> DataFrame:
    """Return for each device the newest value of each column that is not null, and in `time` the newest time.

    `readings` also has the columns of `ORDER`. Fields may come in different messages, and in any order: the time of the
    reading decides. A stream gives the devices that have changed (output mode update). The state of a device, one row,
    is kept for ever.
    """
    order = F.struct(time, *ORDER)
    fields = [name for name in readings.columns if name not in (device, time, *ORDER)]
    newest = [
        F.max_by(F.col(f"`{name}`"), F.when(F.col(f"`{name}`").isNotNull(), order)).alias(name) for name in fields
    ]
    return readings.groupBy(F.col(device)).agg(F.max(time).alias(time), *newest)
