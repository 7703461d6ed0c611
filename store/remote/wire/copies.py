"""What a copy of the log answers, beside records. See `store.remote.server.copy_reads` and `standby_reads`."""

from typing import Final

import msgspec

from store.api import StoreStats

NO_ANSWER: Final = b""  # what was asked for is at the end of the copy or behind it, or the copy cannot be read there
ABOUT: Final = b""  # the request for `CopyFacts`


class CopyFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a copy says of itself."""

    stats: StoreStats
    partitions: int  # of a parent topic without a number of its own
    parent_partitions: dict[bytes, int]  # of those with one
