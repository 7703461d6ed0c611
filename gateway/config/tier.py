"""Settings of the object store that old segments of the log go to: the table `[tier]`."""

from dataclasses import dataclass, field
from typing import Final

from gateway.config.cluster import Options
from gateway.config.limits import bounded, check_table

_SCHEMES: Final = ("s3", "gs", "az", "file")  # as `store.tier.stores` knows them


@dataclass(slots=True)
class TierConfig:
    """Where old segments go. Without `store` they stay on this node's disk; the same names as `store.config`."""

    store: str = ""  # "s3://bucket/prefix", "gs://…", "az://…", "file:///folder"
    # Bytes of the log that stay on this disk too. Older segments are only in the tier.
    retention_local_bytes: int = bounded(1 << 30, 0, 1 << 60)
    cache_bytes: int = bounded(64 << 20, 0, 1 << 40)  # blocks of old segments in memory
    max_reads: int = bounded(4, 1, 64)  # of the tier, in threads at a time
    options: Options = field(default_factory=dict)  # of the object store: endpoint, region, credentials, …


def check(tier: TierConfig, is_clustered: bool) -> str:
    """Return what is wrong, starting with the name of the setting, or ""."""
    if not tier.store:
        return "store is needed by the other settings of [tier]" if tier != TierConfig() else ""
    if is_clustered:
        return "store is for a single node: a node of a cluster has no tier"
    if wrong := check_table(tier):
        return wrong
    if tier.store.partition("://")[0] not in _SCHEMES or "://" not in tier.store:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        return f"store begins with one of {known}, not {tier.store!r}"
    return ""
