"""The settings of a store, with all its bounds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from record.layout import HEADER_SIZE, MAX_FRAME

POLICIES: Final = ("fsync", "interval", "shared")
MAX_MAX_DELIVERIES: Final = 250  # deliveries are counted in a byte
# The settings that `StoreConfig.with_retention_of` takes over.
_RETENTION: Final = (
    *("retention_age_s", "retention_parents", "retention_hours"),
    *("retention_bytes", "retention_free_bytes", "retention_keep_bytes"),
)
_HOURS: Final = re.compile(r"(\d{1,2})-(\d{1,2})", re.ASCII)


def hours_of_day(text: str) -> frozenset[int]:
    """The hours of the day from the first number of a text up to the second, which may be after midnight.

    "2-5" are 2, 3 and 4, and "22-1" are 22, 23 and 0; "" stands for all hours. Raises ValueError.
    """
    if not text:
        return frozenset(range(24))
    match = _HOURS.fullmatch(text)
    begin, end = (int(match[1]), int(match[2])) if match is not None else (24, 24)
    if begin > 23 or end > 24 or begin == end:
        raise ValueError(f'retention_hours must be two different hours of the day, such as "2-5", and not {text!r}')
    return frozenset(hour % 24 for hour in range(begin, end if begin < end else end + 24))


@dataclass(slots=True, frozen=True)
class TierConfig:
    """Settings of the tier: the object store that old segments go to. Raises ValueError for a value out of range."""

    store: str = ""  # its address, as `store.tier.stores.open_objects` has it; "": there is none
    retention_local_bytes: int = 1 << 30  # of the log that stay in files here, if all segments before are in the tier
    cache_bytes: int = 64 << 20  # blocks of old segments in memory
    max_reads: int = 4  # of old segments in the tier, in threads at a time
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # of the object store

    @property
    def is_on(self) -> bool:
        """Whether there is a tier."""
        return bool(self.store)

    def __post_init__(self) -> None:
        if self.retention_local_bytes < 0 or self.cache_bytes < 0:
            raise ValueError("retention_local_bytes and cache_bytes must not be negative")
        if self.max_reads < 1:
            raise ValueError("max_reads must be at least 1")


@dataclass(slots=True, frozen=True)
class StoreConfig:
    """Settings of a store. Raises ValueError for a value out of range.

    `partitions`, `segment_size` and `generation_segments` are fixed when the data folder is created: the folder
    keeps them, and later values are ignored. `parent_partitions` may only grow for a parent topic that has messages.
    """

    partitions: int = 4  # per parent topic
    segment_size: int = 256 << 20
    generation_segments: int = 16  # segments whose index entries share a key prefix
    # Commit when on disk; "interval": when written, sync within `interval_ms`; "shared": when decided in a shared log.
    policy: str = "fsync"
    interval_ms: int = 50
    batch_bytes: int = 1 << 20  # of one flush; a larger append has a flush of its own
    max_batch_bytes: int = MAX_FRAME  # of a batch of a shared log, and so of a record
    spacing_ms: float = 3.0  # between flushes of many small appends
    commit_delay_ms: int = 0  # from the start of a flush of few small appends to that of the next
    max_pending_bytes: int = 64 << 20  # accepted and not committed; the last eighth is kept for control records
    max_wait_ms: int = 5000  # a message that would wait longer for its commit is refused at once; 0: no limit
    tail_cache_bytes: int = 64 << 20
    max_reads: int = 2  # of old records, in threads at a time: each may take up a core
    checkpoint_keys: int = 4096  # changed rows and queues that may wait in memory
    checkpoint_references: int = 1 << 16  # index references that may wait in memory
    checkpoint_age_s: float = 1.0
    max_queue_ends: int = 2 << 20  # queues whose end is in memory, 32 bytes each; others cost a seek when used
    view_flush_bytes: int = 256 << 20  # of log that a restart may have to replay
    view_cache_bytes: int = 64 << 20  # RocksDB's block cache
    parent_partitions: Mapping[bytes, int] = field(default_factory=dict)  # `partitions` of these parent topics
    retention_age_s: float = 0  # remove segments whose newest record is older; 0: never
    retention_parents: Mapping[bytes, float] = field(default_factory=dict)  # retention_age_s of these parent topics
    retention_bytes: int = 0  # remove the oldest segments while the rest has at least these bytes; 0: never
    # Remove the oldest segments while the disk has fewer bytes free; 0: never. With a tier, only their files.
    retention_free_bytes: int = 0
    retention_keep_bytes: int = 1 << 30  # of log that `retention_free_bytes` leaves
    retention_hours: str = ""  # UTC; removal by age waits for these hours of the day (`hours_of_day`)
    retention_check_s: float = 10.0  # time between retention's checks
    serve_damaged: bool = False  # when opening, verify the whole log, and skip the damaged ranges from then on
    max_deliveries: int = 16  # of a message to a group; the message is a dead letter after them
    # Delay before redelivery after the first, second, … negative acknowledgement. RocketMQ's defaults.
    retry_delays_s: tuple[float, ...] = (10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
    max_groups: int = 1 << 16
    max_held: int = 10_000_000  # delayed messages, and messages of open transactions
    max_group_queues: int = 1 << 16  # queues that one group consumes
    max_group_leases: int = 1 << 16  # leased or returned messages of a group in the queues of one pop
    max_group_window: int = 1 << 17  # offsets of a queue from the first unfinished to the last leased
    max_group_objects: int = 1 << 14  # groups' queues and blocks of 256 leases in memory, 3 to 7 KB each
    transaction_check_s: float = 60.0  # time before each check of an open transaction with its producer
    lease_s: float = 5.0  # of a separate gateway; it counts as dead when it sends no heartbeat for as long
    transaction_checks: int = 15  # per transaction; it is rolled back after them
    tier: TierConfig = field(default_factory=TierConfig)

    @property
    def max_record(self) -> int:
        """Bytes of the largest record."""
        return min(self.segment_size, self.max_batch_bytes)

    def with_retention_of(self, other: "StoreConfig") -> "StoreConfig":
        """These settings, with the limits of retention of others: those that can change while a store is open."""
        return replace(self, **{name: getattr(other, name) for name in _RETENTION})

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}")
        if not 1 <= self.partitions <= 0xFFFF:
            raise ValueError("partitions must be 1 to 65535")
        if not 4096 <= self.segment_size <= 1 << 30 or self.segment_size % 4096:
            raise ValueError("segment_size must be a multiple of 4096 up to 1 GiB")
        if not HEADER_SIZE <= self.max_batch_bytes <= MAX_FRAME:
            raise ValueError(f"max_batch_bytes must be {HEADER_SIZE} to {MAX_FRAME}")
        if self.max_pending_bytes < HEADER_SIZE or self.batch_bytes < HEADER_SIZE:
            raise ValueError("max_pending_bytes and batch_bytes must hold a record")
        for name in ("generation_segments", "interval_ms", "max_reads", "checkpoint_keys", "checkpoint_references"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in (
            *("spacing_ms", "commit_delay_ms", "max_wait_ms", "tail_cache_bytes", "checkpoint_age_s"),
            *("view_flush_bytes", "view_cache_bytes"),
            *("retention_age_s", "retention_bytes", "retention_free_bytes", "retention_keep_bytes"),
            *("retention_check_s", "transaction_check_s", "transaction_checks"),
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in (
            "max_groups",
            "max_held",
            "max_queue_ends",
            "max_group_queues",
            "max_group_leases",
            "max_group_window",
            "max_group_objects",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 1 <= self.max_deliveries <= MAX_MAX_DELIVERIES:
            raise ValueError(f"max_deliveries must be 1 to {MAX_MAX_DELIVERIES}")
        if not self.retry_delays_s or min(self.retry_delays_s) < 0:
            raise ValueError("retry_delays_s must be one delay or more, none negative")
        hours_of_day(self.retention_hours)
        self._check_parents()

    def _check_parents(self) -> None:
        if any(b"/" in parent or not 1 <= count <= 0xFFFF for parent, count in self.parent_partitions.items()):
            raise ValueError("parent_partitions must be first levels of topics with 1 to 65535 partitions")
        if any(b"/" in parent or age_s < 0 for parent, age_s in self.retention_parents.items()):
            raise ValueError("retention_parents must be first levels of topics with ages that are not negative")
