"""How much of a producer's last append is in the log.

Frames that were not synced when the node died may be there in part: a PRODUCED record is, and of the records that it
speaks of the first few. They follow it side by side, written by the same opening of the log, so counting them is
enough; whoever writes after a crash has another epoch.
"""

from typing import Final

import record
from store.log.reader import LogReader
from store.views.fold import Views

RETURNING: Final = b"returning/"
_STEP: Final = 1 << 20  # bytes of log read at once
_EPOCH: Final = 12  # where a frame has its writer's epoch, of 4 bytes


def is_gateway(producer: bytes) -> bool:
    """Whether this is the name of a gateway's process; clients of the SDK have names without @."""
    return b"@" in producer


def is_returning(producer: bytes) -> bool:
    """Whether this is the name of one that other processes carry on (`returns` of a Produce stream)."""
    return producer.startswith(RETURNING)


async def cut_from(views: Views, reader: LogReader, producer: bytes) -> tuple[int, int, int] | None:
    """See `store.queries.Queries.produced`."""
    last = views.producers.find(producer)
    if last is None:
        return None
    found = -1  # the record itself is no part of it
    position, end = last.position, views.position
    epoch = b""
    while found < last.records and position < end:
        if views.is_gone(position):
            return last.sequence, 0, last.digest  # retention took it: long ago, and with what followed
        chunk = await reader.chunk(position, end, _STEP)
        starts = record.split(chunk.data)
        epochs = [chunk.data[start + _EPOCH : start + _EPOCH + 4] for start in starts]
        epoch = epoch or epochs[0]
        own = next((n for n, each in enumerate(epochs) if each != epoch), len(epochs))
        found += own
        if own < len(epochs) or not starts:
            break
        position = chunk.next_position
    return last.sequence, max(0, last.records - max(found, 0)), last.digest
