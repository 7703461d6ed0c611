"""What can be set about a store. All bounds are here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from record.layout import HEADER_SIZE, MAX_FRAME

POLICIES: Final = ("fsync", "interval")
MAX_MAX_DELIVERIES: Final = 250  # deliveries are counted in a byte


@dataclass(slots=True, frozen=True)
class StoreConfig:
    """`partitions`, `segment_size` and `generation_segments` are fixed when the data folder is made: the folder
    keeps them and later values are ignored. Raises ValueError for a value out of range."""

    partitions: int = 4  # per parent topic
    segment_size: int = 256 << 20
    generation_segments: int = 16  # segments whose index entries share a key prefix
    policy: str = "fsync"  # when an append counts as committed: on disk; or written, on disk `interval_ms` later
    interval_ms: int = 50
    batch_bytes: int = 1 << 20  # of one flush; a larger single append goes alone
    spacing_ms: float = 3.0  # between flushes of many small appends
    max_pending_bytes: int = 64 << 20  # accepted and not committed; the last eighth is for control records
    tail_cache_bytes: int = 64 << 20
    checkpoint_keys: int = 4096  # changed rows and queues that may wait in memory
    checkpoint_references: int = 1 << 16  # index references that may
    checkpoint_age_s: float = 1.0
    max_queue_ends: int = 8 << 20  # queues whose end is kept in memory: 32 bytes each; more cost a seek when next used
    view_flush_bytes: int = 256 << 20  # of log that a restart may have to replay
    view_cache_bytes: int = 64 << 20  # RocksDB's block cache
    retention_age_s: float = 0  # segments go whose newest record is older; 0: never
    retention_parents: Mapping[bytes, float] = field(default_factory=dict)  # retention_age_s of these parent topics
    retention_bytes: int = 0  # the oldest segments go while the log behind them is at least this long; 0: never
    retention_check_s: float = 10.0  # between two looks at what may go
    serve_damaged: bool = False  # at opening, read the whole log, and from then on serve around what is damaged
    max_deliveries: int = 16  # of a message to a group; then it goes to the group's dead-letter queue
    # How long a message stays away that was given back after its first, second, … delivery. Those of RocketMQ.
    retry_delays_s: tuple[float, ...] = (10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
    max_groups: int = 1 << 16
    max_held: int = 10_000_000  # messages that wait for their time or their transaction
    max_group_queues: int = 1 << 16  # queues that one group has a place in
    max_group_leases: int = 1 << 16  # messages of the queues of one pop that a group has out, or to come again
    max_group_window: int = 1 << 17  # offsets of a queue from the first that is not finished to the last leased out
    max_group_objects: int = 1 << 14  # places of groups in queues, and blocks of 256 messages that are out: 3 KB each
    transaction_check_s: float = 60.0  # after which a publisher is asked what became of a transaction, each time
    lease_s: float = 5.0  # that a gateway, which is a process of its own, is there without being heard of
    transaction_checks: int = 15  # times that it is asked; then the transaction is rolled back

    @property
    def max_record(self) -> int:
        """Bytes of the largest record."""
        return min(self.segment_size, MAX_FRAME)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}")
        if not 1 <= self.partitions <= 0xFFFF:
            raise ValueError("partitions must be 1 to 65535")
        if not 4096 <= self.segment_size <= 1 << 30 or self.segment_size % 4096:
            raise ValueError("segment_size must be a multiple of 4096 up to 1 GiB")
        if self.max_pending_bytes < HEADER_SIZE or self.batch_bytes < HEADER_SIZE:
            raise ValueError("max_pending_bytes and batch_bytes must hold a record")
        for name in ("generation_segments", "interval_ms", "checkpoint_keys", "checkpoint_references"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in (
            *("spacing_ms", "tail_cache_bytes", "checkpoint_age_s", "view_flush_bytes", "view_cache_bytes"),
            *("retention_age_s", "retention_bytes", "retention_check_s", "transaction_check_s", "transaction_checks"),
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in (
            "max_groups",
            "max_held",
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
        if self.max_queue_ends < 1:
            raise ValueError("max_queue_ends must be at least 1")
        if any(b"/" in parent or age_s < 0 for parent, age_s in self.retention_parents.items()):
            raise ValueError("retention_parents must be first levels of topics, with ages that are not negative")
