"""Filters lists for a caller: a right to `#` does not cover topics that begin with `$`."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

import grpc

import record
from gateway.auth.callers import Caller
from gateway.rpc.status import RequestError
from matcher.names import is_shared
from store.api import Action, Child, DeadLetter, GroupState, GroupStore, Resource

CALLER: Final[ContextVar[Caller | None]] = ContextVar("caller", default=None)  # of the call of this task
REVOKED: Final = "the user was changed or removed"

_TOPIC: Final = 3  # in `record.decode`
_NOT_UTF8: Final = b"\xff"  # sorts after every byte of a name


def may_check_transaction(half: bytes) -> bool:
    """Whether the caller may be asked about the transaction of a half message. Raises `RequestError`."""
    caller = CALLER.get()
    if caller is not None and caller.is_revoked:
        raise RequestError(grpc.StatusCode.UNAUTHENTICATED, REVOKED)
    return caller is None or caller.may_publish(topic_of(half))


def is_readable(topic: bytes) -> bool:
    """Whether a caller that may read `#` may read a topic."""
    caller = CALLER.get()
    return caller is None or not topic.startswith(b"$") or caller.may_read(topic)


def is_listed(topic: bytes) -> bool:
    """Whether a caller that may list `#` may see the name of a topic, or those of all topics of a filter."""
    caller = CALLER.get()
    return caller is None or not topic.startswith(b"$") or caller.may_list(topic)


def visible_child(child: Child) -> Child | None:
    """The part of a parent topic that the caller may see."""
    if not child.name.startswith(b"$"):
        return child
    is_topic = child.is_topic and is_listed(child.name)
    has_children = child.has_children and is_listed(child.name + b"/#")
    return Child(child.name, is_topic, has_children) if is_topic or has_children else None


def is_group_visible(state: GroupState) -> bool:
    """Whether the caller may see a group: where no rule says so, if it may read all queues of it."""
    caller = CALLER.get()
    if caller is None:
        return True
    verdict = caller.decide(Action.LIST, Resource.GROUP, state.group)
    return may_read_group(caller, state) if verdict is None else verdict


def may_read_group(caller: Caller, state: GroupState) -> bool:
    """Whether the caller may read all queues of a group."""
    return all(caller.may_read(name) for name in map(_filter_of, [each.queue for each in state.queues]) if name)


def why_unreadable(letters: Sequence[DeadLetter]) -> str:
    """Why the caller may not have these dead letters: it may not read the queues that they come from. "": it may.

    The group may have been removed since they were given up, and with it the knowledge which queues these were.
    """
    caller = CALLER.get()
    if caller is not None and caller.permissions is not None:
        for name in {_filter_of(letter.queue) for letter in letters}:
            if name and not caller.may_read(name):
                return f"there are dead letters of {name.decode()}, which may not be subscribed to"
    return ""


def require_letters(letters: Sequence[DeadLetter]) -> None:
    """Raise `RequestError` unless the caller may have these dead letters."""
    if why := why_unreadable(letters):
        raise RequestError(grpc.StatusCode.PERMISSION_DENIED, why)


async def may_use_group(store: GroupStore, caller: Caller, group: bytes, action: Action = Action.SUB) -> bool:
    """Whether the caller may be a member of a group (SUB), move it (UPDATE) or remove it (DELETE). Where no rule says
    so, it may if its user created the group, or if no user did. A shared subscription has no creator: the right to
    subscribe counts. Raises `StoreError`."""
    verdict = caller.decide(action, Resource.GROUP, group)
    if is_shared(group):
        return verdict is not False and caller.may_read(group)
    return await store.group_creator(group) in (b"", caller.user_name) if verdict is None else verdict


def caller_user() -> bytes:
    """The user of the caller of this task; b"" if there is none."""
    caller = CALLER.get()
    return b"" if caller is None else caller.user_name


def topic_of(frame: bytes) -> bytes:
    """The topic of a record."""
    topic: bytes = record.decode(frame, 0)[_TOPIC]
    return topic


async def group_state(store: GroupStore, name: bytes) -> GroupState | None:
    """The group of that name, or None. Raises `StoreError`."""
    if not name or not name[-1]:
        return None  # no group has such a name
    before = name[:-1] + bytes((name[-1] - 1,)) + _NOT_UTF8  # no name sorts between this and `name`
    page = await store.groups(before, 1)
    return page[0] if page and page[0].group == name else None


def _filter_of(queue: bytes) -> bytes:
    """The filter that matches all messages of a queue; b"" for dead letters, whose topics the other queues cover."""
    kind, name = queue[:1], queue[1:]
    if kind == b"p":
        return name[:-3] + b"/#"
    return b"" if kind == b"d" else name
