"""Settings of buckets of key-value entries: the table `[buckets]`."""

from dataclasses import dataclass

from gateway.config.limits import bounded


@dataclass(slots=True)
class BucketsConfig:
    """What buckets may hold, all together. A node puts its limits into each change that it appends."""

    max_entries: int = bounded(100_000, 1, 1 << 32, "Entries. More are refused.", "entries")
    max_bytes: int = bounded(1 << 30, 1, 1 << 50, "Of all names, keys and values. More are refused.", "bytes")
