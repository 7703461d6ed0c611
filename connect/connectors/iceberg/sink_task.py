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
from connect.connectors.common.store_settings import require_endpoint
from connect.connectors.common.table_task import TableTask
from connect.connectors.iceberg.catalog_properties import properties_of

_SQLITE: Final = "sqlite:///"
_ENDPOINTS: Final = ("s3.endpoint", "oauth2-server-uri", "gcs.service.host")
_FINAL: Final = (ConnectError, ForbiddenError, UnauthorizedError, ValueError, TypeError)


class IcebergSinkTask(TableTask):
    """Appends messages to a table."""

    async def start(self, settings: Settings, context: SinkContext) -> None:
        await super().start(settings, context)
        self._name = settings["iceberg.tables"]
        uri: str = settings["iceberg.catalog.uri"]
        if uri.startswith(_SQLITE):
            uri = _SQLITE + str(context.require_path(uri.removeprefix(_SQLITE)))
        else:
            await require_endpoint(uri, context)
        self._properties = properties_of(settings["iceberg.catalog.properties"])
        for name in _ENDPOINTS:
            await require_endpoint(self._properties.get(name, ""), context)
        self._properties["uri"] = uri
        warehouse = settings["iceberg.catalog.warehouse"]
        if warehouse:
            parts = urlsplit(warehouse)
            is_local = parts.scheme in {"", "file"} and parts.path.startswith("/")
            self._properties["warehouse"] = str(context.require_path(parts.path)) if is_local else warehouse
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

    def _opened_catalog(self) -> Catalog:
        catalog = self._settings["iceberg.catalog"]
        if self._settings["iceberg.catalog.type"] == "sql":
            from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 (it imports SQLAlchemy)

            return SqlCatalog(catalog, **self._properties)
        from pyiceberg.catalog.rest import RestCatalog  # noqa: PLC0415 (for this type only)

        return RestCatalog(catalog, **self._properties)

    def _opened(self) -> Table:
        """The newest version of the table, with the columns that rows have."""
        wanted = with_date(self._schema.empty_table()).schema
        try:
            table: Table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            table = self._created(wanted)
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
