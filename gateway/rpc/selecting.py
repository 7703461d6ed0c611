"""Selections off the wire, and partitions read by offset with one."""

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

_MOST_READ: Final = 8  # fetches of one call, of which nothing may be wanted
_JUDGED_BY: Final = PART_TOPIC | PART_PROPERTIES  # what a selection looks at


def selection_of(wish: pb.Selection, parent: bytes | None) -> Selection:
    """What a consumer of a parent topic wants (None: of dead letters). Raises `RequestError`, which points at what is
    wrong with the text."""
    topic_filter = wish.topic_filter.encode()
    selection = Selection(topic_filter, wish.tags, wish.sql)
    if not selection:
        return EVERYTHING
    try:
        compile_selection(selection)
    except SelectorError as error:
        raise invalid(str(error)) from error
    if topic_filter and parent is not None and parent_of(topic_filter) not in {parent, b"+", b"#"}:
        raise invalid(f"the filter {wish.topic_filter!r} selects nothing below the parent topic {parent.decode()!r}")
    return selection


@dataclass(slots=True)
class Pulled:
    """What one look at a partition had."""

    offset: int  # of the first record; without any: how far was looked
    count: int
    frames: bytes
    bounds: Bounds
    next_offset: int  # where to look on
    gone: int  # records in between that are gone from the log
    offsets: Sequence[int] = ()  # of each record, where they were selected; else they follow each other


async def pulled(
    store: Store, queue: bytes, offset: int, until: int, max_records: int, max_bytes: int, without: int
) -> Pulled:
    """Records of a partition from `offset` on, none at `until` or behind it, without those parts. They may be none,
    also where there are more to come: the next offset says how far was looked."""
    fetched = await store.fetch(queue, offset, max(min(max_records, until - offset), 0), max_bytes, without)
    count, data = fetched.count, fetched.data
    if fetched.next_offset > until:  # behind a gap
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
    """The same of those that a selection wants, with the offset of each."""
    selector = compile_selection(selection)
    offsets: list[int] = []
    frames: list[bytes] = []
    at, room, gone = offset, max_bytes, 0
    for _ in range(_MOST_READ):
        found = await pulled(store, queue, at, until, max_records - len(offsets), max(room, 1), without & ~_JUDGED_BY)
        gone += found.gone
        for own, frame in wanted_of(Fetched(found.offset, found.count, found.frames, found.bounds), selector):
            offsets.append(own)
            frames.append(frame)
            room -= len(frame)
        at = found.next_offset
        if not found.count or len(offsets) >= max_records or room <= 0:
            break
    kept = record.without(b"".join(frames), without & _JUDGED_BY)
    return Pulled(at, len(offsets), kept, found.bounds, at, gone, offsets)


def wanted_of(fetched: Fetched, selector: Selector) -> list[tuple[int, bytes]]:
    """The records that are wanted, as (offset, frame)."""
    data = fetched.data
    starts = record.split(data)
    ends = [*starts[1:], len(data)]
    kept: list[tuple[int, bytes]] = []
    for index in range(len(starts)):
        _, _, _, topic, _, properties, _ = record.decode(data, starts[index])
        if selector.matches_message(topic, properties):
            kept.append((fetched.offset + index, data[starts[index] : ends[index]]))
    return kept
