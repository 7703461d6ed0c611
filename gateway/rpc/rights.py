"""What a caller must be allowed to do for each call: read all topics of a reply, or publish to the topics it is about.

A call about one parent topic needs `parent/#`. A call about everything (lists, removed groups, traces) needs `#`.
Produced messages are checked one by one. A right to `#` does not cover names that begin with `$`: lists leave out the
ones that the caller may not read (`gateway.rpc.visibility`). A call about a group without its parent topic needs the
right to read all of the group's queues.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

import grpc

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.auth.callers import Caller
from gateway.rpc.status import RequestError
from gateway.rpc.visibility import REVOKED, group_state, may_read_group, topic_of
from store.api import Store
from store.errors import NoSuchMessage, StoreError

_ALL: Final = b"#"
PREFIX: Final = "/sluice.v1.Sluice/"

Read = Callable[[Any], bytes]


def _parent(request: Any) -> bytes:
    parent: str = request.parent
    return parent.encode() + b"/#"


def _parent_or_dead(request: pb.ReceiveRequest | pb.AcknowledgeRequest | pb.ResetGroupRequest) -> bytes:
    return _ALL if request.dead_letters else _parent(request)  # which may be of any parent


def _found(request: pb.FindRequest) -> bytes:
    return _parent(request) if request.WhichOneof("by") == "key" else _ALL


def _below(request: pb.ChildrenRequest) -> bytes:
    return request.above.encode() + _ALL


def _named(request: pb.TopicsRequest) -> bytes:
    return request.prefix.encode()[: request.prefix.encode().rfind(b"/") + 1] + _ALL


def _everything(_request: Any) -> bytes:
    return _ALL


READS: Final[dict[str, Read]] = {
    "Pull": _parent,
    "Partitions": _parent,
    "OffsetAt": _parent,
    "CommitOffsets": _parent,
    "CommittedOffsets": _parent,
    "Receive": _parent_or_dead,
    "Acknowledge": _parent_or_dead,
    "ResetGroup": _parent_or_dead,
    "Find": _found,
    "Children": _below,
    "Topics": _named,
    "RemoveGroup": _everything,
    "Groups": _everything,
    "Timers": _everything,
    "Trace": _everything,
}
# The same with `dead_letters`, or always: of what its queues are.
_OF_GROUPS: Final = frozenset(("Receive", "Acknowledge", "ResetGroup"))
# About messages by their handles: who may publish to their topics may recall them, and end their transactions.
PUBLISHES: Final = frozenset(("Recall", "EndTransaction"))
# Judged by what comes in or goes out.
STREAMS: Final = frozenset(("Produce", "TransactionChecks", "Consume"))


class Rights:
    """What callers have to be allowed, of the calls of this protocol."""

    def __init__(self, store: Store, max_handles: int) -> None:
        self._store = store
        self._max_handles = max_handles

    async def require(self, caller: Caller, method: str, request: Any) -> None:
        """Nothing where it may. Raises `RequestError`."""
        if caller.is_revoked:
            raise RequestError(grpc.StatusCode.UNAUTHENTICATED, REVOKED)
        name = method.removeprefix(PREFIX)
        if caller.permissions is None or name == method or name in STREAMS:
            return
        if name in PUBLISHES:
            await self._require_handles(caller, request.handles)
            return
        topic_filter = READS[name](request)
        if not caller.may_read(topic_filter):
            raise _denied(f"{topic_filter.decode()} may not be subscribed to, which this asks for")
        if shows_one(name, request) and not await self._is_granted(caller.may_read, request.position):
            raise _denied("the topic of the message may not be subscribed to")
        group = group_of(name, request)
        if group and not await self._is_readable(caller, group):
            raise _denied("what the group reads may not be subscribed to")

    async def _require_handles(self, caller: Caller, handles: Collection[int]) -> None:
        if len(handles) > self._max_handles:
            return  # the service says so, before it does anything
        for handle in set(handles):
            await asyncio.sleep(0)  # there may be many: others have their turn
            if not await self._is_granted(caller.may_publish, handle):
                raise _denied("the topic of a message may not be published to")

    async def _is_readable(self, caller: Caller, group: bytes) -> bool:
        """Whether the caller may read all that the group reads. One that there is not reads nothing."""
        try:
            state = await group_state(self._store, group)
        except StoreError:
            return False
        return state is None or may_read_group(caller, state)

    async def _is_granted(self, may: Callable[[bytes], bool], position: int) -> bool:
        """Whether the caller may do so with the topic of the message there."""
        try:
            frame = await self._store.message(position)
        except NoSuchMessage:
            return True  # then nothing is done, and nothing told
        except StoreError:
            return False
        return may(topic_of(frame))


def group_of(name: str, request: Any) -> bytes:
    """The group whose queues count too, whatever they are of; b"" for none."""
    if name == "RemoveGroup" or (name in _OF_GROUPS and request.dead_letters):
        group: str = request.group
        return group.encode()
    return b""


def shows_one(name: str, request: Any) -> bool:
    """Whether a call is about the message at a position, whose topic counts too."""
    return name == "Trace" or (name == "Find" and request.WhichOneof("by") != "key")


def _denied(text: str) -> RequestError:
    return RequestError(grpc.StatusCode.PERMISSION_DENIED, text)
