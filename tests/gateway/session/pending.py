"""Messages that may come once more when a subscription ends (docs/decisions/0028-ended-subscriptions.md)."""

import record
from gateway.node.node import Node
from gateway.session.log_position import LogPosition
from matcher.names import matches
from record.layout import FLAG_HELD, Kind
from store.api import subscription_queue
from store.engine import Engine

_PAGE = 1 << 20  # bytes


async def pending(node: Node, client_id: bytes, topic_filter: bytes) -> set[bytes]:
    """Payloads of the messages that the filter matches and another subscription of the session has yet to pass: in the
    log, which is where it goes on after a crash, or in the log itself for one that has no cursor."""
    assert node._engine is not None
    engine = node._engine
    state = await engine.session(client_id)
    found: list[tuple[bytes, bytes]] = []
    for other in state.subscriptions if state is not None else ():
        if other.topic_filter != topic_filter and other.qos:
            found += await _behind_cursor(engine, subscription_queue(other.topic_filter), other.offset)
    held = node._sessions.open_sessions.get(client_id)
    if held is not None and held[0].behind is not None:
        found += await _behind_position(engine, held[0].behind)
    return {payload for topic, payload in found if matches(topic_filter, topic)}


async def _behind_cursor(engine: Engine, queue: bytes, offset: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    while (fetched := await engine.fetch(queue, offset, 256, _PAGE)).count:
        found += [_named(fetched.data, start) for start in record.split(fetched.data)]
        offset = fetched.next_offset
    return found


async def _behind_position(engine: Engine, backlog: LogPosition) -> list[tuple[bytes, bytes]]:
    """A message that was held may have been let in by any record."""
    found: list[tuple[bytes, bytes]] = []
    position, end = 0, engine.stats().log_end
    while position < end:
        chunk = await engine.read(position, _PAGE)
        starts, kinds, flags, *_ = record.scan(chunk.data)
        for start, kind, flag in zip(starts, kinds, flags, strict=True):
            if kind == Kind.MESSAGE and (flag & FLAG_HELD or chunk.position + start >= backlog.position):
                found.append(_named(chunk.data, start))
        position = chunk.next_position
    return found


def _named(data: bytes, start: int) -> tuple[bytes, bytes]:
    _, _, _, topic, _, _, payload = record.decode(data, start)
    return topic, payload
