"""What can be told of a store and its gateways that are processes of their own: the table `[split]`."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from gateway.config.listeners import parse_address

MAX_GATEWAYS: Final = 64  # that one process supervises


@dataclass(slots=True)
class SplitConfig:
    """The store and its gateways as processes of their own."""

    role: str = "both"  # "both": devices, services and the store in this process; "store", "gateway": one side of them
    listen: str = ""  # of a store: where gateways reach it, "host:port" or "unix:/path"
    store: str = ""  # of a gateway: where its store listens
    place: str = ""  # of a gateway: its name among the others. Whoever comes there next replaces it. "": one of its own
    gateways: int = 0  # so many processes, and one for the store, are started and supervised; 0: none are
    share_ports: bool = False  # of gateways on one machine: they listen on the same ports
    grace_s: int = 30  # for a gateway and its store to find each other again when they have lost each other
    # What a gateway is told of. "routed": what its clients want, with the messages; "broadcast": everything.
    notify: str = "routed"
    # Of a store and a gateway over TCP, the three together: TLS, in which each shows a certificate. Files, PEM.
    certificate: str = ""  # behind it those that lead to its authority
    key: str = ""  # without a password
    ca: str = ""  # the authority of the other side's certificate. Whoever has one of it has the store


def check(split: SplitConfig) -> str:
    """What is wrong, beginning with the name of the setting; "" when nothing is."""
    if split.role not in ("both", "store", "gateway"):
        return f'role is "both", "store" or "gateway", not {split.role!r}'
    if not 0 <= split.gateways <= MAX_GATEWAYS:
        return f"gateways must be between 0 and {MAX_GATEWAYS}, not {split.gateways}"
    if not 1 <= split.grace_s <= 3600:
        return f"grace_s must be between 1 and 3600, not {split.grace_s}"
    if split.gateways and split.role != "both":
        return f"gateways starts all processes: it goes without split.role {split.role!r}"
    if (split.role == "store") != bool(split.listen):
        return "listen says where gateways reach a store: role store needs it, no other has it"
    if (split.role == "gateway") != bool(split.store):
        return "store says where a gateway finds its store: role gateway needs it, and no other has it"
    if "/" in split.place or "\0" in split.place or len(split.place.encode()) > 64:
        return "place is a name of at most 64 bytes without / and U+0000"
    if split.notify not in ("routed", "broadcast"):
        return f'notify is "routed" or "broadcast", not {split.notify!r}'
    return _check_way(split)


def _check_way(split: SplitConfig) -> str:
    """Of the way between store and gateway."""
    tls = [bool(each) for each in (split.certificate, split.key, split.ca)]
    if any(tls) != all(tls):
        return "certificate, split.key and split.ca need each other"
    if split.role == "both":
        return "certificate is of a store or a gateway over TCP: set split.role" if any(tls) else ""
    name, address = ("listen", split.listen) if split.role == "store" else ("store", split.store)
    try:
        host, port = parse_address(address)
    except ValueError as error:
        return f"{name}: {error}"
    if port == 0 and name == "store":
        return "store has the port of the store, which is not 0"
    if port < 0 and any(tls):
        return f"certificate is for TCP: split.{name} is a Unix socket, and its folder says who may use it"
    if port >= 0 and name == "listen" and not any(tls) and not _is_loopback(host):
        return f"listen {address}: whoever reaches it has the store; it needs split.certificate, split.key and split.ca"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
