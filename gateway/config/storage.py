"""Settings of the log and its views: the table `[store]`.

The names are those of `store.config.StoreConfig`.
"""

from dataclasses import dataclass
from typing import Final

from gateway.config.limits import bounded, one_of, setting

_BY_PARENT: Final[dict[str, int]] = {}
_DELAYS: Final[list[int]] = [10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200]


@dataclass(slots=True)
class StoreSettings:
    """The log and its views."""

    policy: str = one_of(
        "fsync",
        "interval",
        about="What an acknowledgement means. `fsync`: the message is on disk; `interval`: it is flushed within"
        " `interval_ms`.",
    )
    interval_ms: int = bounded(100, 1, 60_000, 'Time between two flushes with `policy = "interval"`.', "milliseconds")
    commit_delay_ms: int = bounded(
        0,
        0,
        1000,
        "Least time between the starts of two writes of few messages. More costs less CPU and acknowledges later.",
        "milliseconds",
    )
    max_wait_ms: int = bounded(
        5000,
        0,
        3_600_000,
        "A message that would wait longer for the disk is refused. 0: never.",
        "milliseconds",
    )
    max_reads: int = bounded(2, 1, 64, "Reads of old messages at a time, each in a thread that may take up a core.")
    segment_size: int = bounded(
        256 * 1024 * 1024,
        4096,
        1 << 30,
        "The size of a file of the log, a multiple of 4096. Fixed when the data folder is created.",
        "bytes",
    )
    partitions: int = bounded(4, 1, 1024, "Partitions of a parent topic. Fixed when the data folder is created.")
    retention_age_s: int = bounded(
        0,
        0,
        1 << 40,
        "Segments whose newest message is older are removed. 0: never.",
        "seconds",
        live=True,
    )
    parent_partitions: dict[str, int] = setting(
        _BY_PARENT,
        "Partitions by parent topic, in place of `partitions`: `{ sensors = 16 }`. They may only become more once there"
        " are messages.",
    )
    retention_parents: dict[str, int] = setting(
        _BY_PARENT,
        "Retention age in seconds by parent topic, in place of `retention_age_s`: `{ debug = 3600 }`.",
        live=True,
    )
    serve_damaged: bool = setting(False, "Read the whole log at the start, and serve around damage.")
    tail_cache_bytes: int = bounded(64 << 20, 0, 1 << 40, "The newest part of the log in memory.", "bytes")
    view_cache_bytes: int = bounded(64 << 20, 1 << 20, 1 << 40, "RocksDB's cache.", "bytes")
    max_queue_ends: int = bounded(
        2 << 20, 1, 1 << 32, "Queues (as of topics) whose end is known in memory, 32 bytes each.", "queues"
    )
    retention_free_bytes: int = bounded(
        0,
        0,
        1 << 60,
        "The oldest segments are removed while the log's disk has fewer bytes free. 0: never.",
        "bytes",
        live=True,
    )
    retention_keep_bytes: int = bounded(
        1 << 30, 0, 1 << 60, "What `retention_free_bytes` leaves of the log.", "bytes", live=True
    )
    retention_hours: str = setting(
        "",
        "Hours of the day (UTC) in which segments are removed by age: `2-5` from 2:00 to 5:00. Empty: at any time.",
        live=True,
    )
    retention_bytes: int = bounded(
        0, 0, 1 << 60, "The oldest segments are removed while the log is larger. 0: never.", "bytes", live=True
    )
    transaction_check_s: int = bounded(
        60, 1, 86_400, "Time between checks of an open transaction with its publisher.", "seconds"
    )
    transaction_checks: int = bounded(15, 0, 10_000, "Checks after which a transaction is rolled back.")
    lease_ms: int = bounded(
        5000,
        100,
        3_600_000,
        "Time without a sign of life after which a gateway process is considered dead.",
        "milliseconds",
    )
    max_deliveries: int = bounded(16, 1, 250, "Deliveries of a message to a group before it becomes a dead letter.")
    retry_delays_s: list[int] = setting(
        _DELAYS,
        "Time until the next delivery after the first, second, … one failed. The defaults are RocketMQ's.",
    )
    max_groups: int = bounded(65_536, 1, 1 << 24, "Consumer groups.")
    max_held: int = bounded(10_000_000, 1, 1 << 40, "Messages that are delayed or half of a transaction.", "messages")
