"""Ports that a killed server can bind again."""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000
_reserved: set[int] = set()


def lasting_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different TCP ports that are free now.

    They are below the range of outgoing connections. A port in that range may be given to any client before the server
    is back, even to one that tries to reach the dead server. While this process lives, this function returns the same
    port to nobody else, in no process of this user. Raises OSError when too few ports are free.
    """
    found: list[int] = []
    behind = _first_outgoing()
    for port in random.sample(range(_FIRST, behind), behind - _FIRST):
        if len(found) == count:
            return found
        if _reserve(port):
            with socket.socket() as probe:
                try:
                    probe.bind((host, port))
                except OSError:
                    continue
            found.append(port)
    raise OSError(f"fewer than {count} ports are free between {_FIRST} and {behind}")


def _reserve(port: int) -> bool:
    """Lock the port's byte of a file that all processes of this user share. The lock ends with the process."""
    if port in _reserved:  # a second lock of the same process would succeed
        return False
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    _reserved.add(port)
    return True


@cache
def _reservations() -> int:
    return os.open(Path(tempfile.gettempdir()) / f"sluice-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def _first_outgoing() -> int:
    try:
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768  # Linux's default
    return max(first, _FIRST + 1000)
