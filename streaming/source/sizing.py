"""Limiting a micro-batch to a number of bytes, estimated from the first records of each partition."""

import random
from typing import Final

from cloud_sdk.blocking import Client
from cloud_sdk.errors import OffsetOutOfRange
from streaming.history.index import HistoryIndex
from streaming.source.offsets import Offsets, Partition, advance

_SAMPLE_RECORDS: Final = 64
_SAMPLE_BYTES: Final = 256 << 10
_ANYHOW: Final = 1e-3  # chance of a partition without a share


def within_bytes(client: Client, index: HistoryIndex, start: Offsets, end: Offsets, max_bytes: int) -> Offsets:
    """Move `end` back so that [start, end) is about `max_bytes` of the log, and at least one record.

    A partition whose records are larger than its share gets a record from time to time, so that none waits for ever.
    The size of the records of a partition is estimated from the first ones (up to 64).
    """
    backlog = {each: stop - start.get(each, 0) for each, stop in end.items() if stop > start.get(each, 0)}
    sizes = {each: record_size(client, index, each, start.get(each, 0)) for each in backlog}
    # Share the bytes as `advance` shares records.
    shares = advance({}, {each: count * sizes[each] for each, count in backlog.items()}, max_bytes)
    reached = dict(end)
    for each, share in shares.items():
        reached[each] = start.get(each, 0) + share // sizes[each]
    stuck = [each for each in backlog if reached[each] == start.get(each, 0)]
    if stuck:  # records larger than their shares: let one partition advance by a record, each in turn
        (lucky,) = random.choices(stuck, [shares[each] / sizes[each] + _ANYHOW for each in stuck])
        reached[lucky] += 1
    return reached


def record_size(client: Client, index: HistoryIndex, partition: Partition, offset: int) -> int:
    """Return the mean size of the records at an offset, in bytes of the log; at least 1."""
    exported = index.record_size(*partition, offset)
    if exported is not None:
        return exported
    try:
        page = client.pull(*partition, offset, max_records=_SAMPLE_RECORDS, max_bytes=_SAMPLE_BYTES)
    except OffsetOutOfRange:  # retention was faster: the tasks report it
        return 1
    return max(1, len(page.frames) // page.count) if page.count else 1
