"""How many connections the process has file descriptors for.

The log opens segments, and RocksDB its tables, when they need them. A node that gave its last descriptor to a client
could not go on writing. So connections are refused while the store still has its share. gRPC has a share of its own.
"""

import resource
from typing import Final

# RocksDB's tables (512), open segments (64), HTTP (64), WebSocket handshakes (128), and a reserve.
_RESERVED: Final = 1024
_UNLIMITED: Final = 1 << 30


def room_for_connections(services: int) -> int:
    """Descriptors that devices may have. services: the result of `room_for_services`."""
    limit = _limit()
    return _UNLIMITED if limit == resource.RLIM_INFINITY else max(limit - _RESERVED - services, limit // 4)


def room_for_services(wanted: int) -> int:
    """Descriptors that services may have, at most `wanted`."""
    limit = _limit()
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, max(limit // 8, 1))


def _limit() -> int:
    """Raise the limit of the process as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems have a hard limit that they do not grant
            pass
    return soft
