"""How many connections the process has file descriptors for.

The log opens a segment and RocksDB its tables when they need them. A node that gave its last descriptor to a
client could not go on writing, so connections are refused while the store still has its share.
"""

import resource
from typing import Final

# RocksDB's tables (512), segments kept open (64), HTTP (64), WebSockets to be (128), gRPC, and some to spare.
_RESERVED: Final = 1024
_UNLIMITED: Final = 1 << 30


def room_for_connections() -> int:
    """Raise the process's own limit as far as it may, and say how many of its descriptors clients may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems name a hard limit that they do not grant
            pass
    if soft == resource.RLIM_INFINITY:
        return _UNLIMITED
    return max(soft - _RESERVED, soft // 4)
