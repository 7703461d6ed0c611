"""The task of `delta-sink`.

The next offset of a partition is the version of a transaction identifier of the Delta protocol (`txn`), which a commit
changes together with the files. The library refuses a commit if another writer has changed the same identifier
meanwhile.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from connect.api import ConnectError, Partition, RetriableError, Settings, SinkContext
from connect.connectors.common.columns import with_date
from connect.connectors.common.local_files import sync
from connect.connectors.common.one_line import error_line
from connect.connectors.common.store_settings import options_of, require_endpoint
from connect.connectors.common.table_task import TableTask


class DeltaSinkTask(TableTask):
    """Appends messages to a table."""

    async def start(self, settings: Settings, context: SinkContext) -> None:
        await super().start(settings, context)
        url = settings["table.url"]
        parts = urlsplit(url)
        self._folder: Path | None = context.require_path(parts.path) if parts.scheme == "file" else None
        self._url = url if self._folder is None else str(self._folder)
        options: dict[str, Any] = options_of(settings["store.options"])
        await require_endpoint(options.get("endpoint", ""), context)
        self._options = {name: each if isinstance(each, str) else str(each).lower() for name, each in options.items()}
        if options.get("endpoint", "").startswith("http://"):
            self._options["allow_http"] = "true"

    def read_offsets(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        table = self._opened()
        found = {partition: table.transaction_version(self._identifier(partition)) for partition in partitions}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def append(self, table: pa.Table, before: Mapping[Partition, int], after: Mapping[Partition, int]) -> None:
        opened = self._opened()
        for partition in after:
            if opened.transaction_version(self._identifier(partition)) != before.get(partition):
                raise RetriableError(f"another task writes {partition.parent} {partition.number} to {self._where}")
        offsets = [Transaction(self._identifier(partition), offset) for partition, offset in after.items()]
        try:
            write_deltalake(
                opened,
                table,
                mode="append",
                schema_mode="merge",  # columns that the table has besides are empty
                commit_properties=CommitProperties(app_transactions=offsets),
            )
        except (DeltaError, OSError) as error:
            raise RetriableError(f"nothing was written to {self._where}: {error_line(error)}") from None
        if self._folder is not None:
            _flush(self._folder)

    def _opened(self) -> DeltaTable:
        """The newest version of the table, with the columns that rows have."""
        wanted = with_date(self._schema.empty_table()).schema
        try:
            try:
                table = DeltaTable(self._url, storage_options=self._options)
            except TableNotFoundError:
                made = DeltaTable.create(
                    self._url, wanted, mode="ignore", partition_by=["date"], storage_options=self._options
                )
                if self._folder is not None:
                    _flush(self._folder)
                return made
        except (DeltaError, OSError) as error:
            raise RetriableError(f"{self._where} cannot be opened: {error_line(error)}") from None
        known = {each.name: each.type for each in table.schema().fields}
        for each in Schema.from_arrow(wanted).fields:
            if each.name not in known and not self._settings["auto.evolve"]:
                raise ConnectError(f"{self._where} has no column {each.name!r}: auto.evolve=true would add it")
            if each.name in known and each.type != known[each.name]:
                raise ConnectError(f"the column {each.name!r} of {self._where} has another type")
        return table

    def _identifier(self, partition: Partition) -> str:
        return f"sluice.connect.{self._context.connector}.{partition.parent}.{partition.number}"

    @property
    def _where(self) -> str:
        return f"the table {self._url}"


def _flush(folder: Path) -> None:
    """Flush the newest entry of the log of a local table to the disk, and the files that it adds."""
    log = folder / "_delta_log"
    entry = max(log.glob("*.json"))
    actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    added = [folder / unquote(action["add"]["path"]) for action in actions if "add" in action]
    sync([*added, entry], folder)
