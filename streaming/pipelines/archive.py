"""Down-sampled readings in few, large Parquet files with a fixed schema, for long-term storage.

    folder/_staging/2026-01-31T13/00000000000000000042.parquet    the rows of batch 42 for that hour
    folder/date=2026-01-31/13.parquet                             the complete hour

Readers skip names that begin with an underscore, so they see complete hours, one file each. A file is written under
another name and moved into place. Crash points: a batch that Spark repeats writes the same file again. An hour that has
its file has all of its staged rows in it, so any remaining staged files are only removed.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs, parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from streaming.pipelines.readings import is_finite

SCHEMA: Final = pa.schema(
    [
        pa.field("device", pa.string(), nullable=False),
        pa.field("window_start", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("window_end", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("readings", pa.int64(), nullable=False),
        pa.field("mean", pa.float64(), nullable=False),
        pa.field("minimum", pa.float64(), nullable=False),
        pa.field("maximum", pa.float64(), nullable=False),
        pa.field("last", pa.float64(), nullable=False),
    ]
)
_STAGING: Final = "_staging"
_HOUR: Final = "%Y-%m-%dT%H"


def downsampled(
    readings: DataFrame,
    *,
    window: str = "1 minute",
    late: str = "10 minutes",
    device: str = "device",
    time: str = "time",
    value: str = "value",
) -> DataFrame:
    """Aggregate readings to one row per device and window of event time, with the columns `device`, `window_start`,
    `window_end`, `readings`, `mean`, `minimum`, `maximum` and `last`.

    A stream emits a window when it can no longer change, `late` after the newest reading (output mode append). A
    reading that a device sends twice counts twice, which leaves the extremes and the last value unchanged and keeps the
    state of a window small.
    """
    known = readings.where(F.col(device).isNotNull() & F.col(time).isNotNull() & is_finite(F.col(value)))
    number = F.col(value).cast("double")
    grouped = known.withWatermark(time, late).groupBy(
        F.window(F.col(time), window).alias("window"), F.col(device).cast("string").alias("device")
    )
    return grouped.agg(
        F.count(number).alias("readings"),
        F.avg(number).alias("mean"),
        F.min(number).alias("minimum"),
        F.max(number).alias("maximum"),
        F.max_by(number, F.col(time)).alias("last"),
    ).select(
        "device",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *SCHEMA.names[3:],
    )


class Archive:
    """The folder of the archive. Only one query may write to it."""

    def __init__(self, location: str) -> None:
        """location: a path, or a URI of a pyarrow file system such as `s3://bucket/folder`."""
        if "://" in location:
            self._fs, root = fs.FileSystem.from_uri(location)
        else:
            self._fs, root = fs.LocalFileSystem(), location
        self._root = root.rstrip("/")

    def write(self, batch: DataFrame, number: int) -> None:
        """For `foreachBatch`: stage a batch of `downsampled`, then close the hours that are over."""
        self.stage(batch.toArrow(), number)
        self.close_hours()

    def stage(self, rows: pa.Table, number: int) -> None:
        """Write rows to the staging files of batch `number`, one per hour. An hour that has its file already got these
        rows from an earlier attempt."""
        rows = rows.cast(SCHEMA)
        hours = pc.strftime(rows["window_start"], format=_HOUR)
        for hour in sorted(set(hours.to_pylist())):
            if not self._exists(self._file_of(hour)):
                part = rows.filter(pc.equal(hours, hour))
                self._put(part, f"{self._root}/{_STAGING}/{hour}/{number:020}.parquet")

    def close_hours(self, *, also_last: bool = False) -> list[str]:
        """Write the file of each staged hour except the newest. Windows arrive in the order of their end, so an earlier
        hour is complete. `also_last` also closes the newest hour. Return the closed hours."""
        staged = self._names(f"{self._root}/{_STAGING}")
        closing = staged if also_last else staged[:-1]
        for hour in closing:
            folder = f"{self._root}/{_STAGING}/{hour}"
            if not self._exists(self._file_of(hour)):
                rows = dataset.dataset(folder, filesystem=self._fs, format="parquet", schema=SCHEMA).to_table()
                self._put(rows.sort_by([("device", "ascending"), ("window_start", "ascending")]), self._file_of(hour))
            self._fs.delete_dir(folder)
        return closing

    def _file_of(self, hour: str) -> str:
        date, _, number = hour.partition("T")
        return f"{self._root}/date={date}/{number}.parquet"

    def _put(self, rows: pa.Table, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self._fs.create_dir(folder, recursive=True)
        beside = f"{folder}/_{name}"
        with self._fs.open_output_stream(beside) as out:
            parquet.write_table(rows, out, compression="zstd")
        self._fs.move(beside, path)

    def _exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == fs.FileType.File)

    def _names(self, folder: str) -> list[str]:
        found = self._fs.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)
