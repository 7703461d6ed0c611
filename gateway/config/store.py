"""The configuration of the store, made from that of the node."""

from dataclasses import asdict

from gateway.config.config import Config
from gateway.config.tier import address
from store.config import StoreConfig, TierConfig


def store_config(config: Config) -> StoreConfig:
    """Make the configuration of the store."""
    settings = asdict(config.store)
    settings["parent_partitions"] = {name.encode(): count for name, count in config.store.parent_partitions.items()}
    settings["retention_parents"] = {name.encode(): age_s for name, age_s in config.store.retention_parents.items()}
    settings["retry_delays_s"] = tuple(config.store.retry_delays_s)
    settings["lease_s"] = settings.pop("lease_ms") / 1000
    url, options = address(config.tier, config.cluster)
    return StoreConfig(**settings, tier=TierConfig(**{**asdict(config.tier), "store": url, "options": options}))
