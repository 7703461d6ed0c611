"""Which segments retention may take, as `docs/format.md` has it."""

from pathlib import Path

import record
from matcher.names import parent_of
from record.layout import HEADER_SIZE, Kind
from store.config import StoreConfig, hours_of_day
from store.log.disk import Disk
from store.log.removed_ranges import read_removed
from store.log.segments import segment_name
from store.log.tiered import read_tiered
from tests.store.simulation.model import Model


class Reclaiming:
    """The rule, for segments in the folder `log`."""

    def __init__(self, config: StoreConfig, log: Path, disk: Disk) -> None:
        self._config = config
        self._log = log
        self._disk = disk

    @property
    def is_on(self) -> bool:
        """Whether anything goes."""
        config = self._config
        return bool(
            config.retention_bytes
            or config.retention_free_bytes
            or config.retention_age_s
            or config.retention_parents
            or config.tier.is_on
        )

    def floor(self, parent: bytes, now: int) -> int:
        """Store time (ms) from which on the queues of a parent topic answer at `now`; only ages of parents hide."""
        age_s = self._config.retention_parents.get(parent, self._config.retention_age_s)
        return int(now - age_s * 1000) if age_s and self._config.retention_parents else 0

    def cut(self, begin: int, end: int, now: int, model: Model) -> int:
        """Where a log from `begin` to `end` may begin at `now` (ms). The segment with its last byte stays."""
        size = self._config.segment_size
        first = begin
        while begin + size <= max(end - 1, 0) // size * size and self.may_go(begin, end, now, model, begin - first):
            begin += size
        return begin

    def may_go(self, base: int, end: int, now: int, model: Model, freed: int = 0) -> bool:
        """Whether the segment is one too many, or too old for all who have a record in it. `model` knows all of it.

        freed: bytes of segments that go before it.
        """
        config = self._config
        following = base + config.segment_size
        left = end - following - self._holes(following)
        if (
            config.retention_free_bytes
            and not config.tier.is_on
            and self._lacks(end) > freed
            and left >= config.retention_keep_bytes
        ):
            return True
        if config.retention_bytes and left >= config.retention_bytes:
            return True
        if now // 3_600_000 % 24 not in hours_of_day(config.retention_hours):
            return False
        newest = self._first_time(following)
        if not config.retention_parents:
            return _is_past(now, newest, config.retention_age_s)
        ages = {*config.retention_parents.values(), config.retention_age_s}
        return any(_is_past(now, newest, age) for age in ages) and all(
            _is_past(now, newest, config.retention_parents.get(parent, config.retention_age_s))
            for parent in _parents(range(base, following), model)
        )

    def may_drop(self, frame: bytes, now: int) -> bool:
        """Whether a record may leave the middle of the log: it is no message, or too old for its parent topic."""
        kind, _, _, topic, _, _, _ = record.decode(frame, 0)
        age_s = self._config.retention_parents.get(parent_of(topic), self._config.retention_age_s)
        return kind != Kind.MESSAGE or _is_past(now, record.store_time_of(frame, 0), age_s)

    def _holes(self, base: int) -> int:
        """Bytes of the segments from `base` on that take no place on disk."""
        found = [path.stat() for path in self._log.glob("*.log") if int(path.stem) >= base]
        return sum(max(0, stat.st_size - 512 * stat.st_blocks) for stat in found)

    def _lacks(self, end: int) -> int:
        """Bytes that the disk has too few, with those of a next segment."""
        size = self._config.segment_size
        is_prepared = (self._log / segment_name(max(end - 1, 0) // size * size + size)).exists()
        wanted = self._config.retention_free_bytes + (0 if is_prepared else size)
        return wanted - self._disk.free_bytes(self._log)

    def _first_time(self, base: int) -> int:
        """Store time of the first record in a segment, or behind it, that is left; of any first one in the tier."""
        tiered = read_tiered(self._log).find(base)
        if tiered is not None and tiered.time_ms:
            return tiered.time_ms
        size = self._config.segment_size
        position = read_removed(self._log).ranges.behind(base)
        header = (self._log / segment_name(position - position % size)).read_bytes()[position % size :][:HEADER_SIZE]
        return int.from_bytes(header[24:32], "little")


def _parents(segment: range, model: Model) -> set[bytes]:
    """Parent topics with a record in the segment that entered its queues, whenever it did."""
    partitions = [entries for name, entries in model.queues.items() if name[:1] == b"p"]
    return {parent_of(entry.topic) for entries in partitions for entry in entries if entry.position in segment}


def _is_past(now: int, time: int, age_s: float) -> bool:
    return age_s > 0 and time < now - age_s * 1000
