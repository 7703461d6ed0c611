"""Selections of requests, and the records of a partition that match one."""

import record
from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.status import invalid
from matcher.names import parent_of
from matcher.selector import EVERYTHING, Selection, Selector, SelectorError, compile_selection


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


def matching(data: bytes, offset: int, selector: Selector) -> list[tuple[int, bytes]]:
    """The records that match, as (offset, frame). `data` are frames back to back, the first at `offset`."""
    starts = record.split(data)
    ends = [*starts[1:], len(data)]
    matches: list[tuple[int, bytes]] = []
    for index in range(len(starts)):
        _, _, _, topic, _, properties, _ = record.decode(data, starts[index])
        if selector.matches_message(topic, properties):
            matches.append((offset + index, data[starts[index] : ends[index]]))
    return matches
