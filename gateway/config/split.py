"""Settings of a store and gateways in separate processes: the table `[split]`."""

from dataclasses import dataclass
from typing import Final

from gateway.config.limits import addresses, bounded, check_table, one_of, setting
from gateway.config.listeners import is_loopback, parse_address

_MAX_GATEWAYS: Final = 64  # that one process supervises


@dataclass(slots=True)
class SplitConfig:
    """A store and its gateways in separate processes."""

    role: str = one_of("both", "store", "gateway", about="What this process runs: everything, or only one side.")
    listen: str = setting("", "Of a store: where it listens for gateways, `host:port` or `unix:/path`.")
    store: list[str] = addresses(
        "Of a gateway: where its store listens. Several: where the nodes with its log are, of which one leads."
    )
    place: str = setting(
        "", "Of a gateway: its name. A new gateway of the same name replaces it. Empty: a unique name."
    )
    gateways: int = bounded(
        0, 0, _MAX_GATEWAYS, "Gateway processes to start and supervise, and one for the store. 0: one process for all."
    )
    share_ports: bool = setting(False, "Gateways on one machine listen on the same ports.")
    grace_s: int = bounded(30, 1, 3600, "Time for a gateway to reconnect to its store.", "seconds")
    notify: str = one_of(
        "routed",
        "broadcast",
        about="Commits that a gateway is notified of: those that its clients want, or all.",
    )
    certificate: str = setting(
        "",
        "Mutual TLS between a store and a gateway over TCP: a PEM file with the certificate and its chain. Empty: no"
        " TLS.",
    )
    key: str = setting("", "A PEM file with the key of the certificate, without a password.")
    ca: str = setting(
        "",
        "A PEM file with the authority of the other side's certificate, which gives full access to the store.",
    )


def check(split: SplitConfig, is_clustered: bool) -> str:
    """Return what is wrong, starting with the name of the setting, or ""."""
    if wrong := check_table(split):
        return wrong
    if split.gateways and split.role != "both":
        return f"gateways starts all processes: it cannot be combined with split.role {split.role!r}"
    if (split.role == "store") != bool(split.listen):
        return "listen is needed by role store, and by no other role"
    if (split.role == "gateway") != bool(split.store):
        return "store is needed by role gateway, and by no other role"
    if "/" in split.place or "\0" in split.place or len(split.place.encode()) > 64:
        return "place is a name of at most 64 bytes without / and U+0000"
    if is_clustered and split.role != "both":
        return "role must be both: a clustered node starts a store and its gateways by itself"
    return _check_link(split, is_clustered)


def _check_link(split: SplitConfig, is_clustered: bool) -> str:
    """Return what is wrong with the connection between store and gateway, or ""."""
    tls = [bool(each) for each in (split.certificate, split.key, split.ca)]
    if any(tls) != all(tls):
        return "certificate, split.key and split.ca must be given together"
    if split.role == "both":
        is_useless = any(tls) and not is_clustered
        return "certificate is for a store or a gateway over TCP: set split.role" if is_useless else ""
    if split.role == "store":
        return check_listen(split.listen, any(tls))
    ports: list[int] = []
    for address in split.store:
        try:
            ports.append(parse_address(address)[1])
        except ValueError as error:
            return f"store: {error}"
    if 0 in ports:
        return "store must have the port of the store, not 0"
    if any(tls) and max(ports) < 0:
        return "certificate is for TCP: split.store is a Unix socket, which is protected by its folder"
    return ""


def check_listen(address: str, has_tls: bool) -> str:
    """Return what is wrong with the setting `listen` of a store, or ""."""
    try:
        host, port = parse_address(address)
    except ValueError as error:
        return f"listen: {error}"
    if port < 0 and has_tls:
        return "certificate is for TCP: split.listen is a Unix socket, which is protected by its folder"
    if port >= 0 and not has_tls and not is_loopback(host):
        return f"listen {address}: anybody could access the store: set split.certificate, split.key and split.ca"
    return ""
