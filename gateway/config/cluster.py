"""Settings of a node that shares its log with other nodes: the table `[cluster]`."""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from gateway.config.limits import bounded, check_table, setting
from gateway.config.listeners import parse_address
from gateway.config.split import check_listen

Options = dict[str, str | int | float | bool]

_NO_OPTIONS: Final[Options] = {}
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_SCHEMES: Final = ("s3", "gs", "az", "file", "nats", "tls")  # as `store.cluster.engines` knows them


@dataclass(slots=True)
class ClusterConfig:
    """A node of several with one log. Without `log` the node is none."""

    log: str = setting("", "Where the shared log is: `s3://bucket/prefix`, `nats://host:4222,host:4222/stream`, …")
    name: str = setting("", "The name of this node. No two nodes have the same.")
    listen: str = setting("", "Where this node's store listens for the gateways of other nodes: `host:port`.")
    advertise: str = setting("", "The address by which other nodes reach `listen`. Empty: `listen` itself.")
    site: str = setting("", "Where the node is. Other sites stand by while a node of this one has the log.")
    weight: int = bounded(1, 0, 100, "How many clients are sent to this node, compared with the others.")
    leader_timeout_s: int = bounded(
        3, 1, 300, "Time without a sign of the leader after which another node leads.", "seconds"
    )
    poll_ms: int = bounded(50, 1, 10_000, "Time between two looks of a follower for something new.", "milliseconds")
    snapshot_bytes: int = bounded(
        512 << 20, 1 << 20, 1 << 50, "Length of the log between two snapshots for nodes that join.", "bytes"
    )
    options: Options = setting(_NO_OPTIONS, "Options of the log's service: credentials, replicas, …")

    @property
    def address(self) -> str:
        """Where other nodes reach this one's store."""
        return self.advertise or self.listen


def check(cluster: ClusterConfig, has_tls: bool) -> str:
    """Return what is wrong, starting with the name of the setting, or "". has_tls: stores and gateways use TLS."""
    if not cluster.log:
        return "log is needed by the other settings of [cluster]" if cluster != ClusterConfig() else ""
    if wrong := check_table(cluster):
        return wrong
    scheme, found, _ = cluster.log.partition("://")
    if not found or scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        return f"log begins with one of {known}, not {cluster.log!r}"
    if not _NAME.fullmatch(cluster.name):
        return f"name is 1 to 64 letters, digits, dots, - and _, not {cluster.name!r}"
    if cluster.site and not _NAME.fullmatch(cluster.site):
        return f"site is a name of letters, digits, dots, - and _, not {cluster.site!r}"
    return _check_addresses(cluster) or check_listen(cluster.listen, has_tls)


def _check_addresses(cluster: ClusterConfig) -> str:
    if not cluster.listen:
        return "listen is needed: the host:port where gateways of other nodes reach this node's store"
    for name, address in (("listen", cluster.listen), ("advertise", cluster.address)):
        try:
            host, port = parse_address(address)
        except ValueError as error:
            return f"{name}: {error}"
        if port <= 0:
            return f"{name} must have a port of its own, which stays the same: host:port, not {address!r}"
    if _is_any(host):
        return f"advertise is needed: other nodes cannot reach {cluster.listen}"
    return ""


def _is_any(host: str) -> bool:
    """Whether this is the address of all interfaces."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
