"""What tasks have in common that write to a table of a data lake: messages are kept until a commit is worth it."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import pyarrow as pa

from connect.api import DataError, Partition, Settings, SinkContext, SinkRecord, TransactionalSinkTask
from connect.connectors.common.columns import row_of, schema_of, table_of, with_date
from connect.connectors.common.typed_fields import parse_fields


class TableTask(TransactionalSinkTask):
    """Appends messages to one table. Its methods that block are called in threads."""

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._fields = parse_fields(settings["fields"])
        self._schema = schema_of(self._fields)
        self._offsets: dict[Partition, int] = {}  # that the table has
        self._forget()

    async def open(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self._forget()
        self._offsets = dict(await asyncio.to_thread(self.read_offsets, partitions))
        return dict(self._offsets)

    def committed(self) -> Mapping[Partition, int]:
        return self._offsets

    async def put(self, records: Sequence[SinkRecord]) -> None:
        now = asyncio.get_running_loop().time()
        if records and not self._next:
            self._begun_at = now
        rows = []
        for record in records:
            self._next[record.partition] = record.offset + 1
            try:
                rows.append(row_of(record, self._fields))
            except DataError as error:
                self._context.reject(record, error)
        if rows:
            self._kept.append(table_of(rows, self._schema))
        if self._next and (
            (now - self._begun_at) * 1000 >= self._settings["commit.interval.ms"]
            or sum(each.nbytes for each in self._kept) >= self._settings["flush.bytes"]
        ):
            await self._commit()

    @abstractmethod
    def read_offsets(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The next offset of each partition in the newest version of the table, which is created if it is missing.

        Raises `ConnectError`."""

    @abstractmethod
    def append(self, table: pa.Table, before: Mapping[Partition, int], after: Mapping[Partition, int]) -> None:
        """Append rows, which may be none, and set the next offsets of partitions, in one transaction.

        Raises `RetriableError` if the table does not have the offsets `before` any more, and nothing is written then.
        """

    async def _commit(self) -> None:
        await self._context.store_rejected()
        table = with_date(pa.concat_tables(self._kept or [self._schema.empty_table()]))
        before = {partition: self._offsets[partition] for partition in self._next if partition in self._offsets}
        await asyncio.to_thread(self.append, table, before, dict(self._next))
        self._offsets |= self._next
        self._forget()

    def _forget(self) -> None:
        self._kept: list[pa.Table] = []
        self._next: dict[Partition, int] = {}  # behind the messages that are kept
        self._begun_at = 0.0  # when the first of them came, loop time
