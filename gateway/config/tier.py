"""Settings of the object store that old segments of the log go to: the table `[tier]`.

The names are those of `store.config.TierConfig`.
"""

from dataclasses import dataclass
from typing import Final

from gateway.config.cluster import ClusterConfig, Options
from gateway.config.limits import bounded, check_table, setting

_SCHEMES: Final = ("s3", "gs", "az", "file")  # as `store.tier.stores` knows them
CLUSTER: Final = "cluster"
_NO_OPTIONS: Final[Options] = {}


@dataclass(slots=True)
class TierConfig:
    """Where old segments go. Without `store` they stay on this node's disk."""

    store: str = setting(
        "",
        "Where the objects are: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder`, or `cluster` for the object"
        " store of `cluster.log`. Empty: there is no tier.",
    )
    retention_local_bytes: int = bounded(
        1 << 30,
        0,
        1 << 60,
        "What stays of the log on this disk too. Older segments are only in the tier.",
        "bytes",
    )
    cache_bytes: int = bounded(64 << 20, 0, 1 << 40, "Blocks of old segments in memory.", "bytes")
    max_reads: int = bounded(4, 1, 64, "Reads of the tier at a time, each in a thread.")
    options: Options = setting(_NO_OPTIONS, "Options of the object store: endpoint, region, credentials, …")


def check(tier: TierConfig, log: str) -> str:
    """Return what is wrong, starting with the name of the setting, or "". log: `cluster.log`."""
    if not tier.store:
        return "store is needed by the other settings of [tier]" if tier != TierConfig() else ""
    if wrong := check_table(tier):
        return wrong
    known = ", ".join(f"{each}://" for each in _SCHEMES)
    if tier.store == CLUSTER:
        if log.partition("://")[0] not in _SCHEMES:
            return f"store is {CLUSTER!r} only where cluster.log is an object store: give an address with {known}"
        return "options are those of [cluster.options] where store is 'cluster'" if tier.options else ""
    if tier.store.partition("://")[0] not in _SCHEMES or "://" not in tier.store:
        return f"store begins with one of {known}, not {tier.store!r}"
    return ""


def address(tier: TierConfig, cluster: ClusterConfig) -> tuple[str, Options]:
    """Where the objects are, and the options of the object store."""
    if tier.store == CLUSTER:
        return f"{cluster.log.rstrip('/')}/tier", cluster.options
    return tier.store, tier.options
