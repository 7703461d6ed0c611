"""The RocksDB under the views: how it is opened, and the one write that happens to it.

One column family for everything, a byte in front of each key for the view: with the WAL off, a write batch
lives in one memtable, which reaches the disk whole or not at all. So the checkpoint is true after any crash.
(Several column families would need every flush, also a manual one, to be atomic over all of them; the manual
flush of this binding flushes one.)
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, cast

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    SliceTransform,
    WriteBatch,
    WriteOptions,
)
from rocksdict import Checkpoint as RocksCheckpoint

from store.errors import ViewsDamaged

logger = logging.getLogger(__name__)

QUEUE_PREFIX: Final = 21  # bytes that the keys of a queue's index entries have in common, within a generation
_CHECKPOINT_KEY: Final = b"mcheckpoint"
_CHECKPOINT: Final = Struct(">QQQI")
_FORMAT: Final = 1  # of all rows
_MEMTABLE: Final = 16 << 20
_BLOCK: Final = 16 << 10
RDICT_CONFIG: Final = "rocksdict-config.json"
_READ: Final = 4096  # rows that are remembered, and places without one
_READ_BYTES: Final = 256  # of such a row with its key
_NEW_FILES: Final = 16  # flushed memtables that are compacted together: what is below is written anew each time


class Checkpoint:
    """How far the views have come: true up to `position`; `durable` of the log was on disk then."""

    __slots__ = ("durable", "is_readable", "position", "store_time")

    def __init__(self, position: int, durable: int, store_time: int, is_readable: bool = True) -> None:
        self.position = position
        self.durable = durable
        self.store_time = store_time  # ms, of the newest record
        self.is_readable = is_readable  # the other rows are in a format that this version knows


class Database:
    """Rows by key. What is folded is written by `write`, which puts the checkpoint into the same batch.

    Everything raises `ViewsDamaged` where RocksDB fails; its binding knows no narrower type than Exception.
    """

    __slots__ = ("_all_rows", "_db", "_everywhere", "_no_wal", "_path", "_queue_rows", "_read")

    def __init__(self, path: Path, cache_bytes: int) -> None:
        self._path = path
        try:
            path.mkdir(0o750, parents=True, exist_ok=True)  # RocksDB would let others read it
            # Without naming the family, views that exist would be opened with the options that they were made with.
            options = _options(cache_bytes)
            self._db = Rdict(str(path), options, {"default": options})
        except Exception as error:
            raise ViewsDamaged(path, error) from error
        self._queue_rows: RdictIter | None = None
        self._all_rows: RdictIter | None = None  # likewise: see `queue_cursor`
        self._read: dict[bytes, bytes | None] = {}  # since the last write: a session's rows are asked for several times
        self._everywhere = ReadOptions()
        self._everywhere.set_total_order_seek(True)
        self._no_wal = WriteOptions()
        self._no_wal.disable_wal = True  # type: ignore[method-assign, assignment]  # a property

    def checkpoint(self) -> Checkpoint:
        return _checkpoint(self.get(_CHECKPOINT_KEY))

    def get(self, key: bytes) -> bytes | None:
        if key in self._read:
            return self._read[key]
        try:
            row = cast("bytes | None", self._db.get(key))
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error
        self._remember(key, row)
        return row

    def _remember(self, key: bytes, row: bytes | None) -> None:
        if len(key) + len(row or b"") <= _READ_BYTES:
            if len(self._read) >= _READ:
                self._read.clear()
            self._read[key] = row

    def scan(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key begins with `prefix` from `start` on, sorted, as they are now."""
        rows = self.cursor()
        rows.seek(start)
        while self.is_at_row(rows):
            key = rows.key()
            if not key.startswith(prefix):
                break
            yield key, rows.value()
            rows.next()

    def rows_of(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """What comes behind `prefix` in the keys that begin with it, sorted, and their values: for few rows."""
        rows = self._all_rows
        if rows is None:
            rows = self._all_rows = self.cursor()
        found: list[tuple[bytes, bytes]] = []
        rows.seek(prefix)
        while self.is_at_row(rows):
            key: bytes = rows.key()
            if not key.startswith(prefix):
                break
            value: bytes = rows.value()
            found.append((key[len(prefix) :], value))
            self._remember(key, value)
            rows.next()
        return found

    def cursor(self) -> RdictIter:
        """An iterator over the rows as they are now."""
        return self._db.iter(self._everywhere)

    def queue_cursor(self) -> RdictIter:
        """The same, which finds the rows that have the first `QUEUE_PREFIX` bytes in common with what it seeks, and
        passes over files without such rows. Where it is when there are none says nothing.

        There is one until the next write, because making one costs more than seeking: who asks next moves it."""
        if self._queue_rows is None:
            self._queue_rows = self._db.iter()
        return self._queue_rows

    def is_at_row(self, rows: RdictIter) -> bool:
        """Whether the iterator is at a row. A damaged block ends it as the last row does: that is told apart here."""
        if rows.valid():
            return True
        try:
            rows.status()
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error
        return False

    def batch(self) -> WriteBatch:
        """Rows to be written together: `put` and `delete` them. Those sorted by key are twice as fast."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch, checkpoint: Checkpoint) -> None:
        """Apply the whole batch with the checkpoint, or nothing of it."""
        row = _CHECKPOINT.pack(checkpoint.position, checkpoint.durable, checkpoint.store_time, _FORMAT)
        batch.put(_CHECKPOINT_KEY, row)
        self._write(batch)

    def put_all(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Write rows that say the same as others that are there, in other words: the checkpoint stays as it is."""
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value)
        self._write(batch)

    def delete_ranges(self, ranges: list[tuple[bytes, bytes]], key: bytes, value: bytes) -> None:
        """Delete all rows in each [begin, end), however many, and put one row, at once."""
        batch = WriteBatch(raw_mode=True)
        for begin, end in ranges:
            batch.delete_range(begin, end)
        batch.put(key, value)
        self._write(batch)

    def flush(self) -> None:
        """Put on disk what was written, so that a restart replays less. Slow; from any thread."""
        try:
            self._db.flush()
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error

    def link_to(self, path: Path) -> None:
        """Put what was written into a new folder of the same file system, by hard links. It flushes what `flush` did
        not, and holds the GIL all the while: flush before."""
        try:
            RocksCheckpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error

    def size(self) -> int:
        """Bytes of its files. Asked of RocksDB: a file that one lists may be compacted away before one looks at it."""
        return self._db.property_int_value("rocksdb.total-sst-files-size") or 0

    def close(self) -> None:
        """Flush and release. What cannot be flushed now is folded again at the next start."""
        self._queue_rows = self._all_rows = None  # they would keep the folder locked
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001  see the class
            logger.error("closing the views in %s failed; a restart replays more: %s", self._path, error)

    def _write(self, batch: WriteBatch) -> None:
        self._queue_rows = self._all_rows = None
        self._read.clear()
        try:
            self._db.write(batch, self._no_wal)
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error

    @staticmethod
    def destroy(path: Path) -> None:
        Rdict.destroy(str(path), _options(0))


def saved_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint of views that nobody has open, None when there are none. No row changes by it. Raises
    `ViewsDamaged`."""
    if not (path / "CURRENT").exists():
        return None
    try:
        rows = Rdict(str(path), _options(0), access_type=AccessType.read_only())
        try:
            return _checkpoint(rows.get(_CHECKPOINT_KEY))
        finally:
            rows.close()
    except Exception as error:
        raise ViewsDamaged(path, error) from error


def seen_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint of views that a node may have open, None when there are none that can be read. RocksDB is shown
    links to their files in a folder of its own, so that nothing in theirs changes."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        links = Path(folder)
        try:
            for file in path.iterdir():
                if file.name == RDICT_CONFIG:  # is written anew by each opening
                    shutil.copyfile(file, links / file.name)
                else:
                    (links / file.name).symlink_to(file.resolve())
            return saved_checkpoint(links)
        except (OSError, ViewsDamaged):  # also where a compaction took a file meanwhile
            return None


def _checkpoint(row: bytes | None) -> Checkpoint:
    if row is None:
        return Checkpoint(0, 0, 0)
    position, durable, store_time, form = _CHECKPOINT.unpack(row)
    return Checkpoint(position, durable, store_time, is_readable=form == _FORMAT)


def _options(cache_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE)
    options.set_max_write_buffer_number(4)
    options.set_level_zero_file_num_compaction_trigger(_NEW_FILES)
    options.set_level_zero_slowdown_writes_trigger(3 * _NEW_FILES)
    options.set_level_zero_stop_writes_trigger(4 * _NEW_FILES)
    options.set_compression_per_level([DBCompressionType.none(), *[DBCompressionType.zstd()] * 6])
    options.set_prefix_extractor(SliceTransform.create_fixed_prefix(QUEUE_PREFIX))
    options.set_keep_log_file_num(4)
    options.set_max_background_jobs(2)
    options.set_max_open_files(512)
    table = BlockBasedOptions()
    if cache_bytes:
        table.set_block_cache(Cache.new_hyper_clock_cache(cache_bytes, _BLOCK))
    table.set_block_size(_BLOCK)
    table.set_bloom_filter(10, False)
    # In parts, or the filter of one file, 2 MB, is what the cache holds instead of rows (decisions/0020).
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_BLOCK)
    table.set_pin_top_level_index_and_filter(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options
