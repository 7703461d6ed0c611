"""The task of `object-store-sink`."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from connect.api import ConnectError, DataError, Partition, Settings, SinkContext, SinkRecord, TransactionalSinkTask
from connect.connectors.common.batches import at_most
from connect.connectors.common.placeholders import Name
from connect.connectors.common.store_settings import options_of
from connect.connectors.object_store.chunks import Chunk, Note, Notes
from connect.connectors.object_store.formats import Format, format_of
from connect.connectors.object_store.store import Store, open_store

_MAX_MEMORY: Final = 256 << 20  # bytes of all chunks
_MAX_FILES: Final = 1000  # of a chunk
_MAX_FOLDER: Final = 700  # characters; the name of an object in S3 has at most 1,024
_MAX_LEVEL: Final = 200  # characters; the name of a file has at most 255
_UPLOADS: Final = 8  # at a time
_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"  # as Hive and Spark name the folder of what has no value


class _PartitionWriter:
    """The chunk of one partition that is being filled."""

    def __init__(self, notes: Notes, unfinished: Note | None) -> None:
        self.notes = notes
        self.unfinished = unfinished  # a chunk that was begun before: it ends where it ended then
        self.chunk: Chunk | None = None


class ObjectStoreSinkTask(TransactionalSinkTask):
    """Fills a chunk for each partition, and writes it when it is large or old enough."""

    _store: Store

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._folder = settings["topics.dir"].strip("/")
        self._path = [Name(level) for level in settings["path.format"].strip("/").split("/")]
        self._format: Format = format_of(settings)
        self._layout = " ".join([self._folder, settings["path.format"], self._format.suffix])
        self._writers: dict[Partition, _PartitionWriter] = {}
        self._committed: dict[Partition, int] = {}
        self._store = await open_store(settings["store.url"], options_of(settings["store.options"]), context)

    async def open(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self._writers = {}
        self._committed = {}
        for partition in partitions:
            if len(quote(partition.parent, safe="")) > _MAX_LEVEL:
                raise ConnectError(f"the name of the parent topic {partition.parent[:40]!r}… is too long for a file")
            notes = Notes(self._store, self._folder, self._context.connector, partition)
            last = await notes.last()
            self._writers[partition] = _PartitionWriter(notes, None if last is None or last.is_done else last)
            if last is not None:
                self._committed[partition] = last.end if last.is_done else last.first
        return dict(self._committed)

    def committed(self) -> Mapping[Partition, int]:
        return self._committed

    async def put(self, records: Sequence[SinkRecord]) -> None:
        now = asyncio.get_running_loop().time()
        for record in records:
            writer = self._writers[record.partition]
            if writer.chunk is not None and self._is_over(writer, record):
                await self._write(record.partition, writer)
            if writer.unfinished is not None and writer.chunk is None and record.offset >= writer.unfinished.end:
                # What was missing of it is gone from the log: what was written stays.
                await writer.notes.end(replace(writer.unfinished, is_done=True))
                writer.unfinished = None
            self._add(writer, record, now)
            if self._is_full(writer):
                await self._write(record.partition, writer)
        for partition, writer in self._writers.items():
            if writer.chunk is not None and writer.unfinished is None:
                waited_ms = (now - writer.chunk.begun_at) * 1000
                if waited_ms >= self._settings["rotate.schedule.interval.ms"]:
                    await self._write(partition, writer)
        while sum(each.chunk.size for each in self._writers.values() if each.chunk is not None) > _MAX_MEMORY:
            sizes = {name: each.chunk.size for name, each in self._writers.items() if each.chunk is not None}
            largest = max(sizes, key=sizes.__getitem__)
            await self._write(largest, self._writers[largest])

    def _add(self, writer: _PartitionWriter, record: SinkRecord, now: float) -> None:
        if writer.chunk is None:
            first = record.offset if writer.unfinished is None else writer.unfinished.first
            writer.chunk = Chunk(first, record.offset, record.timestamp_ms, now)
        chunk = writer.chunk
        chunk.end = record.offset + 1
        try:
            folder = self._folder_of(record)
            made, size = self._format.row(record)
        except DataError as error:
            self._context.reject(record, error)
            return
        chunk.rows.setdefault(folder, []).append(made)
        chunk.count += 1
        chunk.size += size

    def _is_over(self, writer: _PartitionWriter, record: SinkRecord) -> bool:
        """Whether the chunk ends before a record."""
        assert writer.chunk is not None
        if writer.unfinished is not None:
            return record.offset >= writer.unfinished.end
        most_ms: int = self._settings["rotate.interval.ms"]
        return most_ms >= 0 and record.timestamp_ms - writer.chunk.begun_ms >= most_ms

    def _is_full(self, writer: _PartitionWriter) -> bool:
        chunk = writer.chunk
        assert chunk is not None
        if writer.unfinished is not None:
            return chunk.end >= writer.unfinished.end
        return bool(
            chunk.count >= self._settings["flush.size"]
            or chunk.size >= self._settings["flush.bytes"]
            or len(chunk.rows) >= _MAX_FILES
        )

    async def _write(self, partition: Partition, writer: _PartitionWriter) -> None:
        """Write the files of a chunk."""
        chunk = writer.chunk
        assert chunk is not None
        await self._context.store_rejected()
        base = f"{quote(partition.parent, safe='')}+{partition.number}+{chunk.first:010d}{self._format.suffix}"
        files = {f"{folder}/{base}": rows for folder, rows in chunk.rows.items()}
        end = chunk.end if writer.unfinished is None else writer.unfinished.end
        note = await writer.notes.begin(Note(chunk.first, end, sorted(files), self._layout))
        if note.layout != self._layout:  # it was begun with other settings
            await at_most(_UPLOADS, [name for name in note.files if name not in files], self._store.delete)
        await at_most(_UPLOADS, list(files.items()), self._upload)
        await writer.notes.end(Note(chunk.first, end, sorted(files), self._layout, is_done=True))
        writer.chunk = writer.unfinished = None
        self._committed[partition] = end

    async def _upload(self, file: tuple[str, list[Any]]) -> None:
        name, rows = file
        data = await asyncio.to_thread(self._format.file, rows)
        await self._store.put(name, data, is_new=True)

    def _folder_of(self, record: SinkRecord) -> str:
        """Where a record goes. Raises `DataError`."""
        levels = [_level(each.of_if_any(record)) for each in self._path]
        folder = "/".join([self._folder, *levels])
        if len(folder) > _MAX_FOLDER or max(map(len, levels)) > _MAX_LEVEL:
            raise DataError(
                f"the folder of the message has more than {_MAX_FOLDER} characters, or a level {_MAX_LEVEL}"
            )
        return folder


def _level(text: str | None) -> str:
    """A level of a path: characters that object stores or Hive treat specially become %XX."""
    if not text:
        return _NOTHING
    quoted = quote(text, safe=" =+-_.,@$()!")
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted
