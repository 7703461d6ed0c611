"""Selections of requests, and reading a partition by offset with or without one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.status import invalid
from matcher.names import parent_of
from matcher.selector import EVERYTHING, Selection, Selector, SelectorError, compile_selection
from record.layout import PART_PROPERTIES, PART_TOPIC
from store.api import Bounds, Fetched, Store

_MAX_FETCHES: Final = 8  # of one call; the selection may match no record of them
_SELECTED_BY: Final = PART_TOPIC | PART_PROPERTIES  # the parts that a selection needs


def selection_of(message: pb.Selection, parent: bytes | None) -> Selection:
    """The selection of a request. parent: the parent topic, None for dead letters. Raises `RequestError`, which points
    at the error in the text."""
    topic_filter = message.topic_filter.encode()
    selection = Selection(topic_filter, message.tags, message.sql)
    if not selection:
        return EVERYTHING
    try:
        compile_selection(selection)
    except SelectorError as error:
        raise invalid(str(error)) from error
    if topic_filter and parent is not None and parent_of(topic_filter) not in {parent, b"+", b"#"}:
        raise invalid(f"the filter {message.topic_filter!r} selects nothing below the parent topic {parent.decode()!r}")
    return selection


@dataclass(slots=True)
class Pulled:
    """The result of one read of a partition."""

    offset: int  # of the first record; without records, where the read ended
    count: int
    frames: bytes
    bounds: Bounds
    next_offset: int  # where the next read begins
    lost: int  # records that were removed from the log before they were read
    offsets: Sequence[int] = ()  # of each record if there was a selection; otherwise they are consecutive


async def pulled(
    store: Store, queue: bytes, offset: int, until: int, max_records: int, max_bytes: int, without: int
) -> Pulled:
    """Read records of a partition in [offset, until). without: the parts to leave out (`record.layout`). The result may
    be empty although more records follow, so the caller has to continue at the next offset."""
    fetched = await store.fetch(queue, offset, max(min(max_records, until - offset), 0), max_bytes, without)
    count, data = fetched.count, fetched.data
    if fetched.next_offset > until:  # after a gap
        count = max(until - fetched.offset, 0)
        data = data[: [*record.split(data), len(data)][count]]
    first = min(fetched.offset, max(until, offset))
    return Pulled(first, count, data, fetched.bounds, first + count, first - offset)


async def selected(
    store: Store,
    queue: bytes,
    offset: int,
    until: int,
    max_records: int,
    max_bytes: int,
    without: int,
    selection: Selection,
) -> Pulled:
    """Read records of a partition in [offset, until) that a selection matches. The result has the offset of each."""
    selector = compile_selection(selection)
    offsets: list[int] = []
    frames: list[bytes] = []
    next_offset, room, lost = offset, max_bytes, 0
    for _ in range(_MAX_FETCHES):
        found = await pulled(
            store, queue, next_offset, until, max_records - len(offsets), max(room, 1), without & ~_SELECTED_BY
        )
        lost += found.lost
        for record_offset, frame in matching(Fetched(found.offset, found.count, found.frames, found.bounds), selector):
            offsets.append(record_offset)
            frames.append(frame)
            room -= len(frame)
        next_offset = found.next_offset
        if not found.count or len(offsets) >= max_records or room <= 0:
            break
    data = record.without(b"".join(frames), without & _SELECTED_BY)
    return Pulled(next_offset, len(offsets), data, found.bounds, next_offset, lost, offsets)


def matching(fetched: Fetched, selector: Selector) -> list[tuple[int, bytes]]:
    """The records that match, as (offset, frame)."""
    data = fetched.data
    starts = record.split(data)
    ends = [*starts[1:], len(data)]
    matches: list[tuple[int, bytes]] = []
    for index in range(len(starts)):
        _, _, _, topic, _, properties, _ = record.decode(data, starts[index])
        if selector.matches_message(topic, properties):
            matches.append((fetched.offset + index, data[starts[index] : ends[index]]))
    return matches
