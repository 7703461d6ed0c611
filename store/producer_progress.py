"""How much of a producer's last append is in the log.

Frames that were not synced when the node died may be there in part: a PRODUCED record is, and of the records that it
speaks of the first few. They follow it side by side, written by the same opening of the log, so counting them is
enough; whoever writes after a crash has another epoch. The records that a crash cut off come later, behind a PRODUCED
record of their own with the same sequence.
"""

from collections.abc import AsyncIterator
from typing import Final

import record
from record.layout import Kind
from store.api import LogStore
from store.control import Produced
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


async def appends_from(
    store: LogStore, producer: bytes, position: int, end: int
) -> AsyncIterator[tuple[int, int, list[int]]]:
    """Yield the sequence of each append of a producer in the log, its store time in ms, and the positions of its
    records, which are fewer if a crash cut the last one. position, end: where to look. Raises StoreError."""
    sequence, store_time, missing, epoch = -1, 0, 0, b""
    positions: list[int] = []
    while position < end:
        chunk = await store.read(position, _STEP)
        if not chunk.data:
            break
        position = chunk.next_position
        if not missing and producer not in chunk.data:
            continue
        for start in record.split(chunk.data):
            if missing and chunk.data[start + _EPOCH : start + _EPOCH + 4] == epoch:
                positions.append(record.position_of(chunk.data, start))
                missing -= 1
            else:
                missing = 0
                kind, _, _, name, _, _, payload = record.decode(chunk.data, start)
                if kind == Kind.PRODUCED and name == producer:
                    event = Produced.parse(payload)
                    if event.sequence != sequence:
                        if sequence >= 0:
                            yield sequence, store_time, positions
                        positions = []
                    sequence, missing = event.sequence, event.records
                    store_time = record.store_time_of(chunk.data, start)
                    epoch = chunk.data[start + _EPOCH : start + _EPOCH + 4]
    if sequence >= 0:
        yield sequence, store_time, positions
