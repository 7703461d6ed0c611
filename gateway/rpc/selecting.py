"""Selections off the wire, and partitions read by offset with one."""

from typing import Final

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.status import invalid
from matcher.names import parent_of
from matcher.selector import EVERYTHING, Selection, Selector, SelectorError, compile_selection
from store.api import Fetched, Store

_MOST_READ: Final = 8  # fetches of one call, of which nothing may be wanted


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


async def pulled(
    store: Store, queue: bytes, offset: int, max_records: int, max_bytes: int, selection: Selection
) -> tuple[Fetched, list[int]]:
    """Records of a queue from `offset` on that a selection wants: their frames, and the offset of each. They may be
    none, also where there are more to come: the next offset says how far was looked."""
    selector = compile_selection(selection)
    offsets: list[int] = []
    frames: list[bytes] = []
    at, room = offset, max_bytes
    for _ in range(_MOST_READ):
        fetched = await store.fetch(queue, at, max_records - len(offsets), max(room, 1))
        kept = wanted_of(fetched, selector)
        for own, frame in kept:
            offsets.append(own)
            frames.append(frame)
            room -= len(frame)
        at = fetched.next_offset
        if not fetched.count or len(offsets) >= max_records or room <= 0:
            break
    return Fetched(at, 0, b"".join(frames), fetched.bounds), offsets


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
