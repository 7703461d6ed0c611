"""The RocksDB database of the views: how it is opened, read and written.

All views share one column family; the first byte of a key tells the view. With the WAL off, a write batch is in one
memtable, which reaches the disk entirely or not at all. So rows and checkpoint agree after any crash. (With several
column families each flush would have to be atomic over all of them, but a manual flush of this binding flushes one.)
"""

import errno
import logging
import os
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

QUEUE_PREFIX: Final = 21  # bytes of the common prefix of a queue's index keys within a generation
_NO_SPACE: Final = os.strerror(errno.ENOSPC)
META: Final = b"m"  # rows about the database itself
_CHECKPOINT_KEY: Final = b"mcheckpoint"
_CHECKPOINT: Final = Struct(">QQQI")
_LOG_BEGIN_KEY: Final = b"mbegin"
_FORMAT: Final = 1  # of all rows
_MEMTABLE: Final = 16 << 20
_BLOCK: Final = 16 << 10
RDICT_CONFIG: Final = "rocksdict-config.json"
_READ: Final = 4096  # cached keys with or without a row
_READ_BYTES: Final = 256  # of a cached row with its key
# Names of figures, and of RocksDB's properties.
FIGURES: Final = {
    "memtable_bytes": "cur-size-all-mem-tables",
    "cache_bytes": "block-cache-usage",
    "compaction_pending_bytes": "estimate-pending-compaction-bytes",
    "compactions": "num-running-compactions",
    "full_memtables": "num-immutable-mem-table",
    "writes_stopped": "is-write-stopped",
    "background_errors": "background-errors",
    "keys": "estimate-num-keys",
}
_NEW_FILES: Final = 16  # flushed memtables per compaction, which also rewrites the level below


class Checkpoint:
    """The views are complete up to `position`. The log was on disk up to `durable` when it was written."""

    __slots__ = ("durable", "is_readable", "log_begin", "position", "slots", "store_time")

    def __init__(
        self,
        position: int,
        durable: int,
        store_time: int,
        is_readable: bool = True,
        log_begin: int | None = None,
        slots: bytes = b"",
    ) -> None:
        self.position = position
        self.durable = durable
        self.store_time = store_time  # ms, of the newest record
        self.is_readable = is_readable  # this version knows the format of the other rows
        # The log begins here or before. Retention never removes what the views lack, so without a row it is `position`.
        self.log_begin = position if log_begin is None else log_begin
        self.slots = slots  # of a shared log: what its slots had decided up to `position` (`store.cluster.history`)


class Database:
    """Rows by key. `write` writes folded changes and the checkpoint in one batch.

    All methods raise `ViewsDamaged` when RocksDB fails. Its binding raises plain Exceptions.
    """

    __slots__ = ("_all_rows", "_db", "_everywhere", "_no_wal", "_path", "_queue_rows", "_read")

    def __init__(self, path: Path, cache_bytes: int) -> None:
        """Open the views. Create them if they do not exist. Raises OSError if the disk has no room."""
        self._path = path
        try:
            path.mkdir(0o750, parents=True, exist_ok=True)  # RocksDB would make it readable for all users
            # Without naming the family, existing views would be opened with the options they were created with.
            options = _options(cache_bytes)
            self._db = Rdict(str(path), options, {"default": options})
        except Exception as error:
            if _NO_SPACE in str(error):
                raise OSError(errno.ENOSPC, _NO_SPACE, str(path)) from error
            raise ViewsDamaged(path, error) from error
        self._queue_rows: RdictIter | None = None
        self._all_rows: RdictIter | None = None  # both are reused until the next write: see `queue_cursor`
        self._read: dict[bytes, bytes | None] = {}  # rows read since the last write: a session's are read repeatedly
        self._everywhere = ReadOptions()
        self._everywhere.set_total_order_seek(True)
        self._no_wal = WriteOptions()
        self._no_wal.disable_wal = True  # type: ignore[method-assign, assignment]  # a property

    def checkpoint(self) -> Checkpoint:
        return _checkpoint(self.get(_CHECKPOINT_KEY), self.get(_LOG_BEGIN_KEY))

    def put_log_begin(self, begin: int) -> None:
        """Write down where the log begins. Segments before it may be removed once this is flushed."""
        self.put_all([(_LOG_BEGIN_KEY, begin.to_bytes(8, "big"))])

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
        """Yield the sorted rows from `start` on whose key begins with `prefix`, as they are now."""
        rows = self.cursor()
        rows.seek(start)
        while self.is_at_row(rows):
            key = rows.key()
            if not key.startswith(prefix):
                break
            yield key, rows.value()
            rows.next()

    def rows_of(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """The sorted rows whose keys begin with `prefix`: (key without the prefix, value). For few rows."""
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
        """An iterator for the rows that share the first `QUEUE_PREFIX` bytes with the sought key.

        It skips files without such rows. If there are none, its position is undefined. All callers until the next
        write share one iterator, because creating one costs more than a seek.
        """
        if self._queue_rows is None:
            self._queue_rows = self._db.iter()
        return self._queue_rows

    def last_queue_row(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The last row at or before `key` that shares its first `QUEUE_PREFIX` bytes."""
        rows = self.queue_cursor()
        rows.seek_for_prev(key)
        if not self.is_at_row(rows):
            return None
        found: bytes = rows.key()
        return (found, rows.value()) if found[:QUEUE_PREFIX] == key[:QUEUE_PREFIX] else None

    def is_at_row(self, rows: RdictIter) -> bool:
        """Whether the iterator is at a row. Raises `ViewsDamaged` if a damaged block ended it."""
        if rows.valid():
            return True
        try:
            rows.status()
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error
        return False

    def batch(self) -> WriteBatch:
        """An empty write batch. Writing it is twice as fast if its rows are added in order of keys."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch, checkpoint: Checkpoint) -> None:
        """Write the batch and the checkpoint atomically."""
        row = _CHECKPOINT.pack(checkpoint.position, checkpoint.durable, checkpoint.store_time, _FORMAT)
        batch.put(_CHECKPOINT_KEY, row + checkpoint.slots)
        self._write(batch)

    def put_all(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Write rows that follow from existing rows, so that the checkpoint stays the same."""
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value)
        self._write(batch)

    def delete_ranges(self, ranges: list[tuple[bytes, bytes]], key: bytes, value: bytes) -> None:
        """Delete all rows of the key ranges [begin, end) and put one row, atomically."""
        batch = WriteBatch(raw_mode=True)
        for begin, end in ranges:
            batch.delete_range(begin, end)
        batch.put(key, value)
        self._write(batch)

    def flush(self) -> None:
        """Flush written rows to disk, so that a restart replays less. Slow. For any thread."""
        try:
            self._db.flush()
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error

    def link_to(self, path: Path) -> None:
        """Create a copy in a new folder on the same file system, by hard links.

        It flushes first, and does not release the GIL meanwhile: call `flush` before.
        """
        try:
            RocksCheckpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise ViewsDamaged(self._path, error) from error

    def size(self) -> int:
        """Bytes of its files. RocksDB tells them, because a compaction may remove a listed file."""
        return self._db.property_int_value("rocksdb.total-sst-files-size") or 0

    def figures(self) -> dict[str, int]:
        """Figures by the names of `FIGURES`. It reads no disk."""
        found = {name: self._db.property_int_value(f"rocksdb.{key}") or 0 for name, key in FIGURES.items()}
        found["level0_files"] = int(self._db.property_value("rocksdb.num-files-at-level0") or 0)
        return found

    def close(self) -> None:
        """Flush and close. A restart replays what cannot be flushed."""
        self._queue_rows = self._all_rows = None  # iterators keep the folder locked
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
    """The checkpoint of views that no process has open; None if there are none. Raises `ViewsDamaged`."""
    if not (path / "CURRENT").exists():
        return None
    try:
        rows = Rdict(str(path), _options(0), access_type=AccessType.read_only())
        try:
            return _checkpoint(rows.get(_CHECKPOINT_KEY), rows.get(_LOG_BEGIN_KEY))
        finally:
            rows.close()
    except Exception as error:
        raise ViewsDamaged(path, error) from error


def seen_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint of views that a node may have open; None if there are no readable ones.

    RocksDB opens links to the files in a temporary folder, so that the views' folder does not change.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        links = Path(folder)
        try:
            for file in path.iterdir():
                if file.name == RDICT_CONFIG:  # each opening rewrites it
                    shutil.copyfile(file, links / file.name)
                else:
                    (links / file.name).symlink_to(file.resolve())
            return saved_checkpoint(links)
        except (OSError, ViewsDamaged):  # a compaction may have removed a file meanwhile
            return None


def _checkpoint(row: bytes | None, begin: bytes | None) -> Checkpoint:
    log_begin = None if begin is None else int.from_bytes(begin, "big")
    if row is None:
        return Checkpoint(0, 0, 0, log_begin=log_begin)
    position, durable, store_time, form = _CHECKPOINT.unpack_from(row)
    slots = row[_CHECKPOINT.size :]
    return Checkpoint(position, durable, store_time, form == _FORMAT, log_begin, slots)


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
    # Partitioned filters: a whole one has 2 MB per file and would displace rows from the cache (decisions/0020).
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_BLOCK)
    table.set_pin_top_level_index_and_filter(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    return options
