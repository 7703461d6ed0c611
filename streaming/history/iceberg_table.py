"""The history of a parent topic as an Iceberg table, written by `pyiceberg` without Spark.

The table is in the namespace `sluice` of a catalog. Its progress is in its properties, which a commit changes together
with the files. A commit names the snapshot that it continues, and the catalog refuses it if another writer was faster.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pyarrow import fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform

from streaming.history.errors import HistoryChanged, HistoryError
from streaming.history.file_writer import sync
from streaming.history.folder import HistoryFolder, name_of, parent_of
from streaming.history.table import PARTITIONED_BY, SCHEMA, Compacted, HistoryFile, HistoryState, Progress, fragments

NAMESPACE: Final = "sluice"
_PROGRESS: Final = "sluice.progress"  # the property: {partition: [end, last offset, last position]}


class IcebergCatalog:
    """The tables of parent topics in a catalog, with their files in a history folder."""

    def __init__(self, catalog: str, folder: HistoryFolder) -> None:
        """Open a catalog: the URI of an SQL database (`sqlite:////var/lib/catalog.db`), or a name in the configuration
        of PyIceberg. Raises `HistoryError`."""
        self.folder = folder
        self._catalog = _opened(catalog, folder)

    def table(self, parent: str) -> "IcebergHistory":
        """Return the table of a parent topic, which may not exist yet."""
        return IcebergHistory(self._catalog, self.folder, parent)

    def parents(self) -> list[str]:
        """List the parent topics with a history."""
        if (NAMESPACE,) not in self._catalog.list_namespaces():
            return []
        return sorted(parent_of(name) for _, name in self._catalog.list_tables(NAMESPACE))


class IcebergHistory:
    """The Iceberg table of a parent topic."""

    def __init__(self, catalog: Catalog, folder: HistoryFolder, parent: str) -> None:
        self.folder = folder
        self.parent = parent
        self.data = f"{NAMESPACE}/{name_of(parent)}/data"
        self._catalog = catalog
        self._name = (NAMESPACE, name_of(parent))

    def progress(self) -> dict[int, Progress]:
        """Return the progress by partition in the newest version of the table."""
        table = self._loaded()
        return {} if table is None else _progress(table)

    def state(self) -> HistoryState:
        """Return the files and the progress of the newest version of the table."""
        table = self._loaded()
        if table is None:
            return HistoryState()
        return HistoryState([self._file(row) for row in table.inspect.files().to_pylist()], _progress(table))

    def append(
        self, made: Sequence[HistoryFile], before: Mapping[int, Progress], after: Mapping[int, Progress]
    ) -> None:
        """Add files and set the progress, in one transaction. Raises `HistoryChanged` if the progress is not `before`
        any more, or another writer commits at the same time."""
        table = self._loaded() or self._created()
        if _progress(table) != dict(before):
            raise self._changed()
        paths = [self.folder.location(each.path) for each in made]
        value = json.dumps(
            {str(number): [each.end, each.last_offset, each.last_position] for number, each in after.items()}
        )
        try:
            with table.transaction() as transaction:
                if paths:
                    transaction.add_files(paths, snapshot_properties={_PROGRESS: value}, check_duplicate_files=False)
                transaction.set_properties({_PROGRESS: value})
        except CommitFailedException as error:
            raise self._changed() from error
        self._flush(table)

    def compact(self, file_bytes: int, before: str | None, stopping: threading.Event) -> Compacted:
        """Merge the files of a partition and date into sorted files of about `file_bytes`, whose records are in memory
        meanwhile. With `before` (2026-01-31), only files of earlier dates."""
        done = Compacted(self.parent)
        for group in fragments(self.state().files, file_bytes, before):
            for run in _runs(group, file_bytes):
                if stopping.is_set():
                    return done
                self._merge(run)
                done.old_files += len(run)
                done.new_files += 1
        return done

    def vacuum(self, older_than_h: int) -> list[str]:
        """Expire snapshots older than `older_than_h` hours, and remove files that no snapshot has and that are as old.
        Return their names."""
        table = self._loaded()
        if table is None:
            return []
        before = datetime.now(UTC) - timedelta(hours=older_than_h)
        table.maintenance.expire_snapshots().older_than(before).commit()
        table.refresh()
        known = {self._below(row["file_path"]) for row in table.inspect.all_files().to_pylist()}
        removed = []
        for info in self.folder.infos(self.data, recursive=True):
            name = info.path.removeprefix(f"{self.folder.root}/")
            changed_s = (info.mtime_ns or time.time_ns()) / 1e9
            if info.type == fs.FileType.File and name not in known and changed_s <= before.timestamp():
                self.folder.files.delete_file(info.path)
                removed.append(name)
        return sorted(removed)

    def _merge(self, run: Sequence[HistoryFile]) -> None:
        table = self._loaded()
        assert table is not None
        first, last = run[0], run[-1]
        rows = f"date = '{first.date}' AND partition = {first.partition}"
        rows += f" AND offset >= {first.begin} AND offset < {last.end}"
        records = table.scan(row_filter=rows).to_arrow().sort_by("offset")
        if len(records) != sum(each.rows for each in run):
            raise self._changed()
        try:
            table.overwrite(records, overwrite_filter=rows)
        except CommitFailedException as error:
            raise self._changed() from error
        self._flush(table)

    def _flush(self, table: Table) -> None:
        """Flush the files of the newest commit of a local table to the disk: the library does not."""
        if self.folder.scheme:
            return
        names = [table.metadata_location]
        for snapshot in table.snapshots()[-2:]:  # a compaction makes two: it removes files, and adds others
            names.append(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    names.append(manifest.manifest_path)
                    names += [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)]
        sync(Path(urlsplit(name).path) for name in names)

    def _loaded(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _created(self) -> Table:
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        properties = {
            "sluice.parent": self.parent,
            TableProperties.COMMIT_NUM_RETRIES: "0",  # a repeated commit would not see that the progress has changed
            TableProperties.WRITE_DATA_PATH: self.folder.location(self.data),
        }
        location = self.folder.location(self.data.removesuffix("/data"))
        try:
            transaction = self._catalog.create_table_transaction(
                self._name, SCHEMA, location=location, properties=properties
            )
            with transaction, transaction.update_spec() as spec:
                for name in PARTITIONED_BY:
                    spec.add_field(name, IdentityTransform(), name)
        except (TableAlreadyExistsError, CommitFailedException) as error:
            raise self._changed() from error
        return self._catalog.load_table(self._name)

    def _file(self, row: Mapping[str, Any]) -> HistoryFile:
        bounds = row["readable_metrics"]

        def least(name: str) -> Any:
            return bounds[name]["lower_bound"]

        def greatest(name: str) -> Any:
            return bounds[name]["upper_bound"]

        return HistoryFile(
            path=self._below(row["file_path"]),
            partition=row["partition"]["partition"],
            begin=least("offset"),
            end=greatest("offset") + 1,
            rows=row["record_count"],
            size=row["file_size_in_bytes"],
            first_ms=int(least("stored_at").timestamp() * 1000),
            last_ms=int(greatest("stored_at").timestamp() * 1000),
            first_position=least("position"),
            last_position=greatest("position"),
        )

    def _below(self, location: str) -> str:
        return location.removeprefix("file://").removeprefix(self.folder.location("")).lstrip("/")

    def _changed(self) -> HistoryChanged:
        return HistoryChanged(f"another writer is changing {self._where()}")

    def _where(self) -> str:
        return f"the history of {self.parent!r} in {self.folder.uri}"


def _opened(catalog: str, folder: HistoryFolder) -> Catalog:
    if "://" not in catalog:
        try:
            return load_catalog(catalog)
        except (ValueError, KeyError) as error:
            raise HistoryError(f"the catalog {catalog!r}: {error}") from error
    if urlsplit(catalog).password is not None:
        raise HistoryError("the URI of a catalog must not contain a secret: name it in PyIceberg's configuration")
    if not folder.scheme:
        Path(folder.root).mkdir(parents=True, exist_ok=True)  # SQLite does not create the folder of its file
    properties = {"uri": catalog, "warehouse": folder.location("").rstrip("/"), **_s3_properties(folder)}
    return SqlCatalog(NAMESPACE, **properties)


def _s3_properties(folder: HistoryFolder) -> dict[str, str]:
    names = {"AWS_ENDPOINT_URL": "s3.endpoint", "AWS_REGION": "s3.region"}
    return {names[name]: value for name, value in folder.s3.items() if name in names}


def _progress(table: Table) -> dict[int, Progress]:
    return {int(number): Progress(*each) for number, each in json.loads(table.properties.get(_PROGRESS, "{}")).items()}


def _runs(group: Sequence[HistoryFile], file_bytes: int) -> list[list[HistoryFile]]:
    """Divide files, in the order of their offsets, into runs of at most `file_bytes` with two files or more."""
    runs: list[list[HistoryFile]] = [[]]
    size = 0
    for each in group:
        if runs[-1] and size + each.size > file_bytes:
            runs.append([])
            size = 0
        runs[-1].append(each)
        size += each.size
    return [run for run in runs if len(run) > 1]
