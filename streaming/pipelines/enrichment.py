"""What a registry knows of a device, beside what it says: a broadcast join with a table that may change."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom
from pyspark.sql.types import StringType, StructField, StructType

logger = logging.getLogger(__name__)

FORMATS: Final = ("csv", "parquet", "json", "jdbc")


class Registry:
    """A table of devices: a file, a folder of files, or a table of a database (JDBC), with one row per device.

    `frame` is the table as it is now: of files it is read again when one of them is another than before, by name, size
    or time; a table of a database each time. A table that cannot be read, or has no column `key`, half-written for
    instance, leaves the one before in its place and is said in the log; the first time it is an error.
    """

    def __init__(
        self,
        spark: SparkSession,
        location: str,
        *,
        kind: str | None = None,
        options: Mapping[str, str] | None = None,
        key: str = "device",
    ) -> None:
        """location: a path, or the name of a JDBC table, whose `url` and driver are in `options`. `kind`: of `FORMATS`;
        else what the path ends in. `key`: its column of devices, a text also where it looks like numbers (`007`).
        Raises `ValueError`."""
        chosen = kind or Path(location).suffix.lstrip(".").lower() or "parquet"
        if chosen not in FORMATS:
            raise ValueError(f"a registry is one of {', '.join(FORMATS)}, not {chosen!r}")
        self._spark = spark
        self._location = location
        self._kind = chosen
        self._key = key
        self._options = {"header": "true", "inferSchema": "true"} if chosen == "csv" else {}
        self._options.update(options or {})
        self._frame: DataFrame | None = None
        self._seen: Sequence[tuple[str, int, int]] = ()
        self.loads = 0  # times it was read

    def frame(self) -> DataFrame:
        """The table as it is now. Raises what Spark raises when it was never read, `ValueError` without its key."""
        seen = self._list_files()
        if self._frame is None or seen != self._seen or self._kind == "jdbc":
            try:
                frame = self._read()
            except Exception:
                if self._frame is None:
                    raise
                logger.exception("the registry %s cannot be read: the one before stays", self._location)
                return self._frame
            self._frame, self._seen = frame, seen
            self.loads += 1
        return self._frame

    def _read(self) -> DataFrame:
        reader = self._spark.read.format(self._kind).options(**self._options)
        frame = reader.option("dbtable", self._location).load() if self._kind == "jdbc" else reader.load(self._location)
        if self._key.lower() not in (name.lower() for name in frame.columns):
            raise ValueError(f"the registry {self._location} has no column {self._key!r}: {', '.join(frame.columns)}")
        if self._kind == "csv":
            kinds = [
                StructField(f.name, StringType() if f.name.lower() == self._key.lower() else f.dataType)
                for f in frame.schema
            ]
            frame = reader.schema(StructType(kinds)).load(self._location)
        # The rows themselves, which every executor gets anyhow: no file that is replaced fails a batch that runs.
        return self._spark.createDataFrame(frame.toArrow())

    def _list_files(self) -> list[tuple[str, int, int]]:
        """The files, as far as this machine sees them."""
        path = Path(self._location)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found = []
        for file in files:
            with suppress(FileNotFoundError):  # it may go away while it is looked at
                status = file.stat()
                if S_ISREG(status.st_mode):
                    found.append((str(file), status.st_size, status.st_mtime_ns))
        return found


def enriched(
    readings: DataFrame, registry: DataFrame, *, device: str = "device", registry_key: str = "device"
) -> DataFrame:
    """Readings with the registry's columns in a struct `registry`, null where it does not know the device. Of a device
    with several rows one counts, so a reading stays one."""
    known = (
        registry.where(F.col(registry_key).isNotNull())
        .select(F.col(registry_key).cast("string").alias("_registry_key"), F.struct("*").alias("registry"))
        .dropDuplicates(["_registry_key"])
    )
    matches = readings[device].cast("string") == known["_registry_key"]
    return readings.join(F.broadcast(known), matches, "left").drop("_registry_key")
