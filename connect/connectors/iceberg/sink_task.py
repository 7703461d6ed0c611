"""The task of `iceberg-sink`.

The next offset of a partition is a property of the table, which a commit changes together with the files. A commit
names the snapshot that it continues: the catalog refuses it if another writer was faster.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform

from connect.api import ConnectError, Partition, RetriableError, Settings, SinkContext
from connect.connectors.common.columns import with_date
from connect.connectors.common.local_files import sync
from connect.connectors.common.one_line import error_line
from connect.connectors.common.store_settings import NAME, require_endpoint
from connect.connectors.common.table_task import TableTask
from connect.connectors.iceberg.catalog_properties import ENDPOINTS, properties_of, require_same
from connect.connectors.iceberg.catalog_uri import database_hosts

_SQLITE: Final = "sqlite:///"
_STORES: Final = ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs")
_FOLDERS: Final = ("write.data.path", "write.metadata.path")  # properties of tables
_FINAL: Final = (ConnectError, ForbiddenError, UnauthorizedError, ValueError, TypeError)


class IcebergSinkTask(TableTask):
    """Appends messages to a table."""

    async def start(self, settings: Settings, context: SinkContext) -> None:
        await super().start(settings, context)
        self._name = settings["iceberg.tables"]
        uri: str = settings["iceberg.catalog.uri"]
        is_sql = settings["iceberg.catalog.type"] == "sql"
        if is_sql and uri.startswith(_SQLITE):
            uri = _SQLITE + str(context.require_path(uri.removeprefix(_SQLITE)))
        elif is_sql:
            for host, port in database_hosts(uri):
                await context.require_allowed(host, port)
        else:
            await require_endpoint(uri, context)
        self._properties = properties_of(settings["iceberg.catalog.properties"])
        for name in ENDPOINTS:
            await require_endpoint(self._properties.get(name, ""), context)
        self._properties["uri"] = uri
        warehouse = settings["iceberg.catalog.warehouse"]
        if warehouse:
            is_name = not is_sql and NAME.fullmatch(warehouse)
            self._properties["warehouse"] = warehouse if is_name else self._place(warehouse)
        self._catalog = await asyncio.to_thread(_attempt, self._opened_catalog, "the catalog cannot be opened")

    def read_offsets(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        table = _attempt(self._opened, f"the table {self._name} cannot be opened")
        names = {partition: self._property(partition) for partition in partitions}
        return {each: int(table.properties[name]) for each, name in names.items() if name in table.properties}

    def append(self, table: pa.Table, before: Mapping[Partition, int], after: Mapping[Partition, int]) -> None:
        def write() -> None:
            opened = self._opened()
            for partition in after:
                if opened.properties.get(self._property(partition)) != _text(before.get(partition)):
                    raise RetriableError(f"another task writes {partition.parent} {partition.number} to {self._name}")
            with opened.transaction() as transaction:
                transaction.append(table)
                transaction.set_properties({self._property(each): str(offset) for each, offset in after.items()})
            _flush(opened)

        _attempt(write, f"nothing was written to the table {self._name}")

    def _place(self, location: str) -> str:
        """Where files may go: an object store, or a folder that the worker allows. Raises `ConnectError`."""
        parts = urlsplit(location)
        if parts.scheme in _STORES:
            return location
        if parts.scheme not in {"", "file"} or parts.netloc or not parts.path.startswith("/"):
            raise ConnectError(f"files of a table cannot be at {location[:100]}")
        return str(self._context.require_path(parts.path))

    def _require_places(self, table: Table) -> None:
        """Raise `ConnectError` if the catalog has the worker write elsewhere than it may."""
        require_same(table.io.properties, self._properties)
        for each in (table.location(), table.metadata_location, *(table.properties.get(name) for name in _FOLDERS)):
            if each:
                self._place(each)

    def _opened_catalog(self) -> Catalog:
        catalog = self._settings["iceberg.catalog"]
        if self._settings["iceberg.catalog.type"] == "sql":
            from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 (it imports SQLAlchemy)

            return SqlCatalog(catalog, **self._properties)
        from connect.connectors.iceberg.rest_catalog import DirectRestCatalog  # noqa: PLC0415 (for this type only)

        opened = DirectRestCatalog(catalog, **self._properties)
        require_same(opened.properties, self._properties)
        return opened

    def _opened(self) -> Table:
        """The newest version of the table, with the columns that rows have."""
        wanted = with_date(self._schema.empty_table()).schema
        try:
            table: Table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            table = self._created(wanted)
        self._require_places(table)
        known = {each.name for each in table.schema().fields}
        missing = [name for name in wanted.names if name not in known]
        if missing and not self._settings["auto.evolve"]:
            raise ConnectError(f"the table {self._name} has no column {missing[0]!r}: auto.evolve=true would add it")
        if missing:
            with table.update_schema() as update:
                update.union_by_name(wanted)
        # A commit that PyIceberg repeats would not see that offsets have changed. This is not written to the table.
        once = table.metadata.properties | {TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        return table

    def _created(self, schema: pa.Schema) -> Table:
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        try:
            transaction = self._catalog.create_table_transaction(self._name, schema)
            with transaction, transaction.update_spec() as spec:
                spec.add_field("date", IdentityTransform(), "date")
        except TableAlreadyExistsError:  # another task was faster
            pass
        created: Table = self._catalog.load_table(self._name)
        return created

    def _property(self, partition: Partition) -> str:
        return f"sluice.connect.{self._context.connector}.{partition.parent}.{partition.number}"


def _attempt(call: Callable[[], Any], what: str) -> Any:
    """The result of a call. Raises `RetriableError` or `ConnectError`."""
    try:
        return call()
    except RetriableError:
        raise
    except CommitFailedException:
        raise RetriableError(f"{what}: another writer was faster") from None
    except ValidationError:  # its text has parts of a file
        raise ConnectError(f"{what}: its metadata cannot be read") from None
    except _FINAL as error:
        raise error if isinstance(error, ConnectError) else ConnectError(f"{what}: {error_line(error)}") from None
    except Exception as error:  # noqa: BLE001 (PyIceberg passes on errors of HTTP clients, SQL drivers, file systems)
        raise RetriableError(f"{what}: {error_line(error)}") from None


def _text(offset: int | None) -> str | None:
    return None if offset is None else str(offset)


def _flush(table: Table) -> None:
    """Flush the files of the newest snapshot of a local table to the disk. PyIceberg does not."""
    snapshot = table.current_snapshot()
    location = table.location().removeprefix("file://")
    if snapshot is None or not location.startswith("/"):
        return
    manifests = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
    added = [entry.data_file.file_path for each in manifests for entry in each.fetch_manifest_entry(table.io)]
    names = [*added, *(each.manifest_path for each in manifests), snapshot.manifest_list, table.metadata_location]
    sync([Path(name.removeprefix("file://")) for name in names], Path(location))
