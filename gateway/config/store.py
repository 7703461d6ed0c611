"""The configuration of the store, made from that of the node."""

from gateway.config.config import Config
from store.config import StoreConfig


def store_config(config: Config) -> StoreConfig:
    """Make the configuration of the store."""
    return StoreConfig(
        policy=config.store.policy,
        interval_ms=config.store.interval_ms,
        segment_size=config.store.segment_size,
        partitions=config.store.partitions,
        retention_age_s=config.store.retention_age_s,
        retention_parents={name.encode(): age_s for name, age_s in config.store.retention_parents.items()},
        retention_bytes=config.store.retention_bytes,
        serve_damaged=config.store.serve_damaged,
        transaction_check_s=config.store.transaction_check_s,
        transaction_checks=config.store.transaction_checks,
        lease_s=config.store.lease_ms / 1000,
        max_deliveries=config.store.max_deliveries,
        retry_delays_s=tuple(config.store.retry_delays_s),
        max_groups=config.store.max_groups,
        max_held=config.store.max_held,
    )
