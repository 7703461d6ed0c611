"""Where clients connect from, and the networks that rules name."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

LOCAL: Final = "local"  # the source of clients on a Unix socket
LOCAL_PEER: Final = "a local process"  # as a peer


def host_of(peer: str) -> str:
    """Return the source of a client: its address without the port, `LOCAL`, or "" if it is not known.

    peer: "host:port", "[IPv6]:port", `LOCAL_PEER`, or another text for a peer without an address.
    """
    if peer == LOCAL_PEER:
        return LOCAL
    address = address_of(peer.rpartition(":")[0].strip("[]").partition("%")[0])
    return "" if address is None else str(address)


def network_text(text: str) -> str:
    """Check a source that a rule names, and return it as it is stored. Raises ValueError."""
    if text == LOCAL:
        return LOCAL
    network = ip_network(text)
    if isinstance(network, IPv6Network) and (network.network_address.ipv4_mapped or network.network_address.scope_id):
        raise ValueError(f"{text!r} has an IPv4 address or an interface in it")
    return str(network)


class Networks:
    """Sources that a rule names."""

    __slots__ = ("_has_local", "_networks")

    def __init__(self, texts: Sequence[str]) -> None:
        self._has_local = LOCAL in texts
        self._networks = [ip_network(text) for text in texts if text != LOCAL]

    def contain(self, source: str) -> bool:
        """Whether a source (see `host_of`) is one of these."""
        if source == LOCAL:
            return self._has_local
        address = address_of(source)
        return address is not None and any(address in network for network in self._networks)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address of a source; an IPv4 address that is mapped into IPv6 as such. None: it has none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
