"""Enriching readings from a registry of devices: a broadcast join with a table that may change."""

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

    `frame` is the current table. Files are read again when one of them has changed its name, size or time, and a
    database table each time. When a table cannot be read or has no column `key`, the previous one is kept and the error
    is logged; the first time, it is raised.
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
        """`location` is a path, or the name of a JDBC table, whose `url` and driver are in `options`. `kind` is one of
        `FORMATS`, by default the suffix of the path. `key` is the column of devices, a text even if it looks like a
        number (`007`). Raises `ValueError`."""
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
        self.loads = 0  # how often the table was read

    def frame(self) -> DataFrame:
        """Return the current table. Raises Spark's error when the first reading fails, and `ValueError` without the
        key."""
        seen = self._list_files()
        if self._frame is None or seen != self._seen or self._kind == "jdbc":
            try:
                frame = self._read()
            except Exception:
                if self._frame is None:
                    raise
                logger.exception("cannot read the registry %s; the previous table is kept", self._location)
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
        # Keep the rows, which every executor gets anyway, so that replacing a file fails no running batch.
        return self._spark.createDataFrame(frame.toArrow())

    def _list_files(self) -> list[tuple[str, int, int]]:
        """List the files with their sizes and times, as far as this machine sees them."""
        path = Path(self._location)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        found = []
        for file in files:
            with suppress(FileNotFoundError):  # it may be removed meanwhile
                status = file.stat()
                if S_ISREG(status.st_mode):
                    found.append((str(file), status.st_size, status.st_mtime_ns))
        return found


def enriched(
    readings: DataFrame, registry: DataFrame, *, device: str = "device", registry_key: str = "device"
) -> DataFrame:
    """Add the registry's columns as a struct `registry`, null for an unknown device. Only one of several rows of a
    device is used, so the number of readings does not change."""
    known = (
        registry.where(F.col(registry_key).isNotNull())
        .select(F.col(registry_key).cast("string").alias("_registry_key"), F.struct("*").alias("registry"))
        .dropDuplicates(["_registry_key"])
    )
    matches = readings[device].cast("string") == known["_registry_key"]
    return readings.join(F.broadcast(known), matches, "left").drop("_registry_key")
