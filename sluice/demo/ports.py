"""Ports that a killed server can bind again."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000


def lasting_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different TCP ports that are free now.

    They are below the range of outgoing connections. A port in that range may be given to any client before the server
    is back, even to one that tries to reach the dead server. Raises OSError when too few ports are free.
    """
    found: list[int] = []
    behind = _first_outgoing()
    for port in random.sample(range(_FIRST, behind), behind - _FIRST):
        if len(found) == count:
            return found
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found.append(port)
    raise OSError(f"fewer than {count} ports are free between {_FIRST} and {behind}")


def _first_outgoing() -> int:
    try:
        first = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768  # Linux's default
    return max(first, _FIRST + 1000)
