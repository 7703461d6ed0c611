"""What connectors may reach: addresses of networks, and folders."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from connect.api import ConnectError, RetriableError

# IPv6 networks whose addresses have an IPv4 address in them, which may be a private one.
_TRANSLATED: Final = tuple(
    map(IPv6Network, ("::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
)


class Permissions:
    """What the connectors of a worker may reach. A connector is set by somebody who may not be at the worker's machine:
    it must not reach what only that machine can."""

    def __init__(self, networks: Sequence[str], folders: Sequence[str]) -> None:
        """networks: `10.1.0.0/16`, beside all public addresses. folders: their files. Raises ValueError."""
        self._networks = [ip_network(each) for each in networks]
        self._folders = [Path(each).resolve() for each in folders]

    async def require_allowed(self, host: str, port: int) -> None:
        """See `TaskContext.require_allowed`. All addresses of a name have to be allowed: its client chooses one."""
        if not host or "/" in host:
            raise ConnectError(f"{host!r} is no name of a host")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise RetriableError(f"the host {host!r} is not found: {error.strerror or error}") from error
        for address in {str(each[4][0]) for each in found}:
            if not self._is_allowed(address):
                raise ConnectError(
                    f"{host} is {address}, which is no public address and not in connect.allowed_networks"
                )

    def require_path(self, path: str) -> Path:
        """See `TaskContext.require_path`."""
        found = Path(path).resolve()
        if not any(found.is_relative_to(each) for each in self._folders):
            raise ConnectError(f"{path} is not in connect.allowed_folders of the worker")
        return found

    def _is_allowed(self, address: str) -> bool:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found.version == each.version and found in each for each in self._networks):
            return True
        if isinstance(found, IPv6Address) and any(found in each for each in _TRANSLATED):
            return False
        return found.is_global and not found.is_multicast
