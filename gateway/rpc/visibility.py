"""What a caller may be told in calls that are about everything: the right to `#` is not about names with a `$`."""

from contextvars import ContextVar
from typing import Final

import grpc

import record
from gateway.auth.callers import Caller
from gateway.rpc.status import RequestError
from store.api import Child, GroupState, Store

CALLER: Final[ContextVar[Caller | None]] = ContextVar("caller", default=None)  # who makes the call of this task
REVOKED: Final = "the user was changed or removed"

_TOPIC: Final = 3  # in `record.decode`
_NEVER: Final = b"\xff"  # a byte that no name has: they are UTF-8


def may_hear(half: bytes) -> bool:
    """Whether the caller may be asked about the transaction of a message. Raises RequestError."""
    caller = CALLER.get()
    if caller is not None and caller.is_revoked:
        raise RequestError(grpc.StatusCode.UNAUTHENTICATED, REVOKED)
    return caller is None or caller.may_publish(topic_of(half))


def may_see(topic: bytes) -> bool:
    """Whether the caller, who may read all that `#` matches, may be told of a topic, or of all below a filter."""
    caller = CALLER.get()
    return caller is None or not topic.startswith(b"$") or caller.may_read(topic)


def seen(child: Child) -> Child | None:
    """What the caller may be told of a parent topic."""
    if not child.name.startswith(b"$"):
        return child
    is_topic = child.is_topic and may_see(child.name)
    has_children = child.has_children and may_see(child.name + b"/#")
    return Child(child.name, is_topic, has_children) if is_topic or has_children else None


def may_see_group(state: GroupState) -> bool:
    """Whether the caller may be told of a group."""
    caller = CALLER.get()
    return caller is None or may_read_group(caller, state)


def may_read_group(caller: Caller, state: GroupState) -> bool:
    """Whether he may read all that the group's queues are of."""
    return all(caller.may_read(name) for name in map(_read_by, [each.queue for each in state.queues]) if name)


def topic_of(frame: bytes) -> bytes:
    topic: bytes = record.decode(frame, 0)[_TOPIC]
    return topic


async def group_state(store: Store, name: bytes) -> GroupState | None:
    """The group of that name, if there is one. Raises StoreError."""
    if not name or not name[-1]:
        return None  # which is no name of a group
    before = name[:-1] + bytes((name[-1] - 1,)) + _NEVER  # nothing is between
    page = await store.groups(before, 1)
    return page[0] if page and page[0].group == name else None


def _read_by(queue: bytes) -> bytes:
    """The filter that matches all that a queue is of; b"" for dead letters, which come from the group's others."""
    kind, name = queue[:1], queue[1:]
    if kind == b"p":
        return name[:-3] + b"/#"
    return b"" if kind == b"d" else name
