"""Listening sockets, at an address or at a path."""

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

_BACKLOG: Final = 4096  # connections that the kernel may queue
# Bytes that the kernel may buffer for a client that does not read. It doubles the number for its own overhead. Without
# this limit it buffers up to 4 MB for each client: thousands of them would fill the machine's memory.
_SEND_BUFFER: Final = 256 * 1024


class ListenError(OSError):
    """The process cannot listen on an address. The message names it and says why."""


async def bind(address: str, mode: str = "600", *, shares: bool = False) -> tuple[list[socket.socket], str]:
    """Listen at `address` (see `ListenerConfig`), on every address of a host name.

    mode: permissions of a Unix socket, octal. shares: other processes of the same user may listen on the same port,
    and the kernel distributes the connections. Returns the sockets, and the address with the bound port. Raises
    ListenError.
    """
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


async def check_host(host: str, setting: str = "host") -> bool:
    """Check that this machine can listen on a host. Returns whether only this machine can reach it.

    `setting`: the name of the setting, for the error. Raises ListenError."""
    try:
        sockets, _ = await bind(f"[{host}]:0" if ":" in host else f"{host}:0")
    except ListenError as error:
        raise ListenError(f"{setting} is {host!r}: {error}") from error
    local = is_local(sockets)
    for bound in sockets:
        bound.close()
    return local


def is_local(sockets: Sequence[socket.socket]) -> bool:
    """Whether only this machine can reach the sockets."""
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
        # Accepted sockets inherit both.
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
        os.fchmod(listening.fileno(), mode & 0o600)  # before it has a name; the umask may remove some
        listening.bind(os.fspath(path))
        path.chmod(mode)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_left_over(path: Path) -> bool:
    """Whether nobody listens at the path: a node that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED


def accept(listening: int) -> int:
    """Accept a connection as a descriptor. Returns -1 if none waits. Compiled twin: `gateway.listen._streams`."""
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
    """Close a listening socket. The path of a Unix socket is removed, unless another node listens there."""
    path = Path(listening.getsockname()) if listening.family == socket.AF_UNIX else None
    listening.close()
    if path is not None and path.is_socket() and _is_left_over(path):
        path.unlink()
