"""Random configurations of a store, small enough that everything happens in a short history."""

from random import Random

from store.config import StoreConfig, TierConfig

DISK = 9  # segments that the disk has room for, as far as retention looks at it
FOREVER = 10**6  # seconds: such a timer of the store does not fire by itself, the history calls it


def settings(rng: Random) -> StoreConfig:
    """Of a data folder with segments of some KiB."""
    size = rng.choice((4096, 4096, 8192, 16384))
    length, free, age_s, ages_s = rng.choice(
        (
            (0, 0, 0, {}),
            (0, 0, 0, {}),
            (size, 0, 0, {}),
            (3 * size, 0, 0, {}),
            (0, 4 * size, 0, {}),
            (0, 0, 20, {}),
            (4 * size, 0, 20, {}),
            (0, 0, 20, {b"a": 5, b"": 0}),
            (0, 0, 5, {b"b": 0, b"c": 20}),
            (9 * size, 0, 5, {b"many": 0}),
            (6 * size, 3 * size, 0, {b"a": 10, b"b": 30, b"many": 1}),
        )
    )
    tier = TierConfig()
    if rng.random() < 0.4:
        tier = TierConfig(
            "memory", retention_local_bytes=rng.choice((0, size, 4 * size)), cache_bytes=rng.choice((0, 5000, 1 << 20))
        )
    return StoreConfig(
        partitions=rng.choice((1, 2, 4)),
        segment_size=size,
        generation_segments=rng.choice((1, 2, 16)),
        policy=rng.choice(("fsync", "fsync", "interval")),
        interval_ms=rng.choice((50, FOREVER * 1000)),
        batch_bytes=rng.choice((200, 1000, 4000, 1 << 20)),
        spacing_ms=rng.choice((0, 3)),
        tail_cache_bytes=rng.choice((0, 2000, 1 << 20)),
        checkpoint_keys=rng.choice((1, 5, 50, 5000)),
        checkpoint_age_s=rng.choice((1, FOREVER)),
        max_queue_ends=rng.choice((1, 3, 1000)),
        view_flush_bytes=rng.choice((3000, 1 << 30)),
        view_cache_bytes=0,
        retention_bytes=length,
        retention_free_bytes=free,
        retention_keep_bytes=rng.choice((0, 3 * size)),
        retention_hours=rng.choice(("", "", "0-12", "12-24")),
        retention_age_s=age_s,
        retention_parents=ages_s,
        transaction_check_s=rng.choice((3, 40)),
        transaction_checks=rng.choice((0, 1, 3)),
        max_deliveries=rng.choice((1, 2, 16)),
        retry_delays_s=(1, 5, 30),
        max_group_leases=rng.choice((3, 1000)),
        max_group_window=rng.choice((5, 1000)),
        max_group_objects=rng.choice((1, 3, 1000)),
        retention_check_s=rng.choice((5, FOREVER)),
        commit_delay_ms=rng.choice((0, 0, 20)),
        tier=tier,
    )
