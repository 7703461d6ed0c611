"""How many connections the process has file descriptors for.

The log opens a segment and RocksDB its tables when they need them. A node that gave its last descriptor to a
client could not go on writing, so connections are refused while the store still has its share. gRPC's have a share of
their own, which it bounds by itself.
"""

import resource
from typing import Final

# RocksDB's tables (512), segments kept open (64), HTTP (64), WebSockets to be (128), and some to spare.
_RESERVED: Final = 1024
_UNLIMITED: Final = 1 << 30


def room_for_connections(services: int) -> int:
    """How many of the process's descriptors devices may take. services: those of `room_for_services`."""
    limit = _limit()
    return _UNLIMITED if limit == resource.RLIM_INFINITY else max(limit - _RESERVED - services, limit // 4)


def room_for_services(wanted: int) -> int:
    """How many of them services may take, that are to have up to so many."""
    limit = _limit()
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, max(limit // 8, 1))


def _limit() -> int:
    """That of the process, which is raised as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems name a hard limit that they do not grant
            pass
    return soft
