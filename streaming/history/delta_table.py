"""The history of a parent topic as a Delta table, written by `deltalake` without Spark.

The progress is in the transaction identifiers of the Delta protocol (`txn` actions), which a commit changes together
with the files. The library refuses a commit if another writer has changed the same identifiers meanwhile. So a record
is exported exactly once, whoever is killed, and whoever else exports.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from streaming.history.errors import HistoryChanged, HistoryError
from streaming.history.file_writer import sync
from streaming.history.folder import HistoryFolder, name_of, parent_of
from streaming.history.table import (
    PARTITIONED_BY,
    SCHEMA,
    STATISTICS,
    Compacted,
    HistoryFile,
    HistoryState,
    Progress,
    fragments,
)

_PARTITIONS: Final = "sluice.partitions"  # the identifier with the number of partitions
_FIELDS: Final = ("end", "last_offset", "last_position")  # of `Progress`
_LOG: Final = "_delta_log"


class DeltaFolder(HistoryFolder):
    """A folder with a Delta table for each parent topic."""

    def table(self, parent: str) -> "DeltaHistory":
        """Return the table of a parent topic, which may not exist yet."""
        return DeltaHistory(self, parent)

    def parents(self) -> list[str]:
        """List the parent topics with a history."""
        names = [info.base_name for info in self.infos("") if info.type == fs.FileType.Directory]
        return sorted(parent_of(name) for name in names if self.infos(f"{name}/{_LOG}"))


class DeltaHistory:
    """The Delta table of a parent topic in a history folder."""

    def __init__(self, folder: HistoryFolder, parent: str) -> None:
        self.folder = folder
        self.parent = parent
        self.data = name_of(parent)

    def progress(self) -> dict[int, Progress]:
        """Return the progress by partition in the newest version of the table."""
        table = self._opened()
        return {} if table is None else _progress(table)

    def state(self) -> HistoryState:
        """Return the files and the progress of the newest version of the table."""
        table = self._opened()
        if table is None:
            return HistoryState()
        actions = pa.table(table.get_add_actions(flatten=True))
        return HistoryState([self._file(row) for row in actions.to_pylist()], _progress(table))

    def append(
        self, made: Sequence[HistoryFile], before: Mapping[int, Progress], after: Mapping[int, Progress]
    ) -> None:
        """Add files and set the progress, in one transaction. Raises `HistoryChanged` if the progress is not `before`
        any more."""
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [self._action(each, now_ms) for each in made]
        properties = CommitProperties(app_transactions=_transactions(before, after))
        try:
            table = self._opened() or self._created()
            if _progress(table) != dict(before):
                raise self._changed()
            table.create_write_transaction(
                actions, "append", SCHEMA, list(PARTITIONED_BY), commit_properties=properties
            )
        except CommitFailedError as error:
            raise self._changed() from error
        except DeltaError as error:
            raise HistoryError(f"{self._where()}: {error}") from error
        self._flush()

    def compact(self, file_bytes: int, before: str | None, stopping: threading.Event) -> Compacted:
        """Merge the files of a partition and date into files of about `file_bytes`, sorted by offset. With `before`
        (2026-01-31), only files of earlier dates."""
        done = Compacted(self.parent)
        for group in fragments(self.state().files, file_bytes, before):
            if stopping.is_set():
                break
            table = self._opened()
            assert table is not None
            filters = [("date", "=", group[0].date), ("partition", "=", str(group[0].partition))]
            try:
                metrics = table.optimize.z_order(["offset"], partition_filters=filters, target_size=file_bytes)
            except CommitFailedError as error:
                raise self._changed() from error
            except DeltaError as error:
                raise HistoryError(f"{self._where()}: {error}") from error
            self._flush()
            done.old_files += metrics["numFilesRemoved"]
            done.new_files += metrics["numFilesAdded"]
        return done

    def vacuum(self, older_than_h: int) -> list[str]:
        """Remove files that no version of the last `older_than_h` hours needs, and those of killed writers. Return
        their names."""
        table = self._opened()
        if table is None:
            return []
        removed = table.vacuum(older_than_h, dry_run=False, enforce_retention_duration=False, full=True)
        return [f"{self.data}/{name}" for name in removed]

    def _opened(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self.folder.location(self.data), storage_options=self.folder.s3)
            features = table.protocol().reader_features
        except TableNotFoundError:
            return None
        except (DeltaError, DeltaProtocolError) as error:
            raise HistoryError(f"{self._where()}: {error}") from error
        if features:
            raise HistoryError(f"{self._where()} needs features of the Delta protocol: {', '.join(features)}")
        if table.schema().to_arrow() is None or {each.name for each in table.schema().fields} != set(SCHEMA.names):
            raise HistoryError(f"{self._where()} has other columns than a history")
        return table

    def _created(self) -> DeltaTable:
        made = DeltaTable.create(
            self.folder.location(self.data),
            SCHEMA,
            mode="ignore",
            partition_by=list(PARTITIONED_BY),
            name=self.parent or None,
            description="Records of a parent topic, exported by `sluice history export`",
            configuration={"delta.dataSkippingStatsColumns": ",".join(STATISTICS)},
            storage_options=self.folder.s3,
        )
        self._flush()
        return made

    def _file(self, row: Mapping[str, object]) -> HistoryFile:
        def number(name: str) -> int:
            value = row[name]
            assert isinstance(value, int)
            return value

        def ms(name: str) -> int:
            value = row[name]
            assert isinstance(value, datetime)
            return int(value.timestamp() * 1000)

        return HistoryFile(
            path=f"{self.data}/{row['path']}",
            partition=number("partition.partition"),
            begin=number("min.offset"),
            end=number("max.offset") + 1,
            rows=number("num_records"),
            size=number("size_bytes"),
            first_ms=ms("min.stored_at"),
            last_ms=ms("max.stored_at"),
            first_position=number("min.position"),
            last_position=number("max.position"),
        )

    def _action(self, made: HistoryFile, now_ms: int) -> AddAction:
        statistics = {
            "numRecords": made.rows,
            "minValues": {
                "offset": made.begin,
                "stored_at": _iso(made.first_ms),
                "position": made.first_position,
            },
            "maxValues": {
                "offset": made.end - 1,
                "stored_at": _iso(made.last_ms),
                "position": made.last_position,
            },
            "nullCount": dict.fromkeys(STATISTICS, 0),
        }
        partition = {"date": made.date, "partition": str(made.partition)}
        path = made.path.removeprefix(f"{self.data}/")
        return AddAction(path, made.size, partition, now_ms, True, json.dumps(statistics))

    def _flush(self) -> None:
        """Flush the newest entry of the log of a local table to the disk, and the files that it adds: the library does
        not."""
        if not self.folder.scheme:
            root = Path(self.folder.path(self.data))
            entry = max((root / _LOG).glob("*.json"))
            actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
            sync([*(root / unquote(each["add"]["path"]) for each in actions if "add" in each), entry])

    def _changed(self) -> HistoryChanged:
        return HistoryChanged(f"another writer is changing {self._where()}")

    def _where(self) -> str:
        return f"the history of {self.parent!r} in {self.folder.uri}"


def _progress(table: DeltaTable) -> dict[int, Progress]:
    count = table.transaction_version(_PARTITIONS) or 0
    found = {}
    for number in range(count):
        end, *last = (table.transaction_version(_identifier(number, field)) for field in _FIELDS)
        if end is not None:
            found[number] = Progress(end, *(-1 if value is None else value for value in last))
    return found


def _transactions(before: Mapping[int, Progress], after: Mapping[int, Progress]) -> list[Transaction]:
    """Return the identifiers that change. The first one is in every commit of an exporter, so that two of them never
    succeed at once."""
    made = [Transaction(_PARTITIONS, max(after, default=-1) + 1)]
    for number, each in sorted(after.items()):
        if each != before.get(number):
            made += (Transaction(_identifier(number, field), getattr(each, field)) for field in _FIELDS)
    return made


def _identifier(partition: int, field: str) -> str:
    return f"sluice.partition.{partition}.{field}"


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
