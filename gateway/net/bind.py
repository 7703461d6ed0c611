"""Sockets that listen: at an address, or at a path."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gateway.config.listeners import parse_address
from gateway.net.proxy_protocol import address_text

_BACKLOG: Final = 4096  # connections the kernel may hold for us
# Bytes that the kernel may hold for a client that does not read; it counts them twice, for what it needs itself. Left
# alone it goes up to 4 MB each: thousands of such clients would have the machine's memory.
_SEND_BUFFER: Final = 256 * 1024


class ListenError(OSError):
    """An address cannot be had. The message names it and says why."""


async def bind(address: str, mode: str = "600", *, shares: bool = False) -> tuple[list[socket.socket], str]:
    """Listen at `address` (see `ListenerConfig`), on every address that a host name has. Returns the sockets, and the
    address with the port that it got. mode: of a Unix socket, octal. shares: other processes
    of the same user may listen there too, and the kernel spreads connections. Raises ListenError."""
    host, port = parse_address(address)
    try:
        if port < 0:
            return [_unix(Path(host), int(mode, 8))], address
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise _named(error, address) from error
    sockets: list[socket.socket] = []
    try:
        for family, _type, _protocol, _name, place in dict.fromkeys(found):
            sockets.append(_inet(family, (place[0], port, *place[2:]), shares=shares))
            port = sockets[0].getsockname()[1]
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise _named(error, address) from error
    return sockets, address_text(host, port)


async def check_host(host: str) -> None:
    """Whether this machine has the host that all fronts are to listen on. Raises ListenError, which says so."""
    try:
        sockets, _ = await bind(f"[{host}]:0" if ":" in host else f"{host}:0")
    except ListenError as error:
        raise ListenError(f"host is {host!r}: {error}") from error
    for bound in sockets:
        bound.close()


def is_local(sockets: Sequence[socket.socket]) -> bool:
    """Whether only this machine reaches what listens there."""
    places = [each.getsockname() for each in sockets if each.family != socket.AF_UNIX]
    return all(ip_address(place[0]).is_loopback for place in places)


def _named(error: OSError, address: str) -> ListenError:
    return ListenError(f"cannot listen on {address}: {error.strerror or error}")


def _inet(family: int, place: tuple[object, ...], *, shares: bool) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Both of what it accepts, too.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind(place)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _unix(path: Path, mode: int) -> socket.socket:
    if path.is_socket():
        if not _is_left_over(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listening.fileno(), mode & 0o600)  # before it has a name; the umask may take from this
        listening.bind(os.fspath(path))
        path.chmod(mode)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_left_over(path: Path) -> bool:
    """Whether nobody listens there any more: a node that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def accept(listening: int) -> int:
    """See `gateway.listen._streams`."""
    listener = socket.socket(fileno=listening)
    try:
        client, _ = listener.accept()
    except (BlockingIOError, InterruptedError, ConnectionAbortedError):
        return -1
    finally:
        listener.detach()
    client.setblocking(False)
    return client.detach()


def release(listening: socket.socket) -> None:
    """Close it; the name of a Unix socket goes too, unless another node has taken it over."""
    path = Path(listening.getsockname()) if listening.family == socket.AF_UNIX else None
    listening.close()
    if path is not None and path.is_socket() and _is_left_over(path):
        path.unlink()
