"""Selections of requests, and the records of a partition that match one."""

from collections.abc import Sequence
from dataclasses import dataclass

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.status import invalid
from matcher.names import parent_of
from matcher.selector import EVERYTHING, Selection, Selector, SelectorError, compile_selection
from record.layout import MAX_KEY, MAX_KEYS


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


def keys_of(keys: Sequence[str]) -> list[bytes]:
    """The keys of a request. Raises `RequestError`."""
    if len(keys) > MAX_KEYS:
        raise invalid(f"there are {len(keys)} keys; at most {MAX_KEYS} are looked for at a time")
    found = [key.encode() for key in keys]
    if not all(0 < len(key) <= MAX_KEY for key in found):
        raise invalid(f"a key has 1 to {MAX_KEY} bytes")
    return found


@dataclass(slots=True)
class Records:
    """Frames back to back, and the offset of each. are_selected: all have a topic and a key that are wanted."""

    data: bytes
    offsets: Sequence[int]
    are_selected: bool


def matching(records: Records, selector: Selector, keys: Sequence[bytes]) -> Records:
    """The records that match, and that have one of `keys` if there are any."""
    data = records.data
    starts = record.split(data)
    ends = [*starts[1:], len(data)]
    wanted = frozenset(keys)
    offsets: list[int] = []
    frames: list[bytes] = []
    for offset, start, end in zip(records.offsets, starts, ends, strict=False):
        _, _, _, topic, _, properties, _ = record.decode(data, start)
        if selector.matches_message(topic, properties) and (
            not wanted or not wanted.isdisjoint(record.keys_of(properties))
        ):
            offsets.append(offset)
            frames.append(data[start:end])
    return Records(b"".join(frames), offsets, True)
