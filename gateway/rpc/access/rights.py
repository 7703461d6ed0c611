"""The rights that each call requires: to read all topics of its reply, or to publish to the topics that it concerns.

A call about one parent topic needs SUB of `parent/#`. Pull and Partitions with a filter of its topics need that filter
only. A call about everything (removed groups, held messages, traces) needs `#`. A list of topics needs LIST of these
topics, and a list of groups LIST of all groups, or where no rule says so SUB of `#`.
Produced messages are checked one by one. A right to `#` does not cover names that begin with `$`: lists leave out the
ones that the caller may not read (`gateway.rpc.access.visibility`). A call about a group without its parent topic needs
the right to read all of the group's queues. A call that uses a group also needs the right to the group
(`may_use_group`).
A call about the entry of key K in bucket B needs a rule that allows `$kv/B/K`, whatever the default is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import grpc

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.auth.callers import Caller
from gateway.auth.rules.permissions import Permissions
from gateway.rpc.access.visibility import REVOKED, group_state, may_read_group, may_use_group, topic_of
from gateway.rpc.status import RequestError, status_of
from matcher.names import parent_of
from matcher.reserved import KV
from store.api import Action, Resource, Store
from store.errors import NoSuchMessage, StoreError

_ALL: Final = b"#"
PREFIX: Final = "/sluice.v1.Sluice/"

ByRules = Callable[[Caller], Awaitable[Permissions | None]]  # see `Callers.permissions_by_rules`
_RequiredFilter = Callable[[Any], bytes]  # request → the filter that its caller must be allowed to subscribe to


def _parent(request: Any) -> bytes:
    parent: str = request.parent
    return parent.encode() + b"/#"


def _selected(request: pb.PullRequest | pb.PartitionsRequest) -> bytes:
    """The filter that the request names, if its topics have the request's parent."""
    selected = request.selection.topic_filter if isinstance(request, pb.PullRequest) else request.topic_filter
    topic_filter = selected.encode()
    if topic_filter and parent_of(topic_filter) == request.parent.encode():
        return topic_filter
    return _parent(request)


def _parent_or_dead(request: pb.ReceiveRequest | pb.AcknowledgeRequest | pb.ResetGroupRequest) -> bytes:
    return _ALL if request.dead_letters else _parent(request)  # dead letters may be of any parent topic


def _searched(request: pb.FindRequest) -> bytes:
    return _parent(request) if request.WhichOneof("by") == "key" else _ALL


def _below(request: pb.ChildrenRequest) -> bytes:
    return request.above.encode() + _ALL


def _named(request: pb.TopicsRequest) -> bytes:
    return request.prefix.encode()[: request.prefix.encode().rfind(b"/") + 1] + _ALL


def _everything(_request: Any) -> bytes:
    return _ALL


def _entry(request: pb.GetEntryRequest | pb.PutEntryRequest | pb.RemoveEntryRequest) -> bytes:
    """The topic that stands for an entry in rules."""
    return b"%b/%b/%b" % (KV, request.bucket.encode(), request.key.encode())


def _entries(request: pb.EntriesRequest | pb.BucketChangesRequest) -> bytes:
    """The filter of the entries below the levels of a prefix."""
    levels = request.prefix.encode()
    return b"%b/%b/%b#" % (KV, request.bucket.encode(), levels[: levels.rfind(b"/") + 1])


READS: Final[dict[str, _RequiredFilter]] = {
    "Pull": _selected,
    "Partitions": _selected,
    "OffsetAt": _parent,
    "CommitOffsets": _parent,
    "CommittedOffsets": _parent,
    "Receive": _parent_or_dead,
    "Acknowledge": _parent_or_dead,
    "ResetGroup": _parent_or_dead,
    "Find": _searched,
    "Children": _below,
    "Topics": _named,
    "RemoveGroup": _everything,
    "Groups": _everything,
    "Timers": _everything,
    "Trace": _everything,
}
# With `dead_letters`, these also require the right to read all queues of the group.
_GROUP_CALLS: Final = frozenset(("Receive", "Acknowledge", "ResetGroup"))
# These use a group, and require the right to do so.
_USES: Final = {
    "Receive": Action.SUB,
    "Acknowledge": Action.SUB,
    "CommitOffsets": Action.SUB,
    "ResetGroup": Action.UPDATE,
    "RemoveGroup": Action.DELETE,
}
_LISTS: Final = frozenset(("Children", "Topics"))  # of names of topics
# These name messages by handle, and require the right to publish to the topics of the messages.
PUBLISHES: Final = frozenset(("Recall", "EndTransaction"))
# These concern entries of buckets, and require the right to subscribe or to publish to the topics that stand for them,
# which no default grants.
_ENTRY_READS: Final[dict[str, _RequiredFilter]] = {"GetEntry": _entry, "Entries": _entries, "BucketChanges": _entries}
_ENTRY_CHANGES: Final = frozenset(("PutEntry", "RemoveEntry"))
NEED_RULES: Final = frozenset((*_ENTRY_READS, *_ENTRY_CHANGES))
# Each of these streams checks every message that it receives or sends.
STREAMS: Final = frozenset(("Produce", "TransactionChecks", "Consume"))
# These require none.
_FREE: Final = frozenset(("Nodes",))


class Rights:
    """Checks the rights of callers of the native protocol."""

    def __init__(self, store: Store, max_handles: int, by_rules: ByRules | None = None) -> None:
        """by_rules: None where no calls about entries of buckets are checked."""
        self._store = store
        self._by_rules = by_rules
        self._max_handles = max_handles

    async def require(self, caller: Caller, method: str, request: Any) -> None:
        """Raises `RequestError` unless the caller may make this call."""
        if caller.is_revoked:
            raise RequestError(grpc.StatusCode.UNAUTHENTICATED, REVOKED)
        name = method.removeprefix(PREFIX)
        if name in NEED_RULES:
            await self._require_entries(caller, name, request)
            return
        if caller.permissions is None or name == method or name in STREAMS or name in _FREE:
            return
        if name in PUBLISHES:
            await self._require_handles(caller, request.handles)
            return
        topic_filter = READS[name](request)
        if not _may_see(caller, name, topic_filter):
            what = "groups" if name == "Groups" else topic_filter.decode()
            does = "listed" if name in _LISTS or name == "Groups" else "subscribed to"
            raise _denied(f"{what} may not be {does}, and this call requires it")
        if concerns_position(name, request) and not await self._is_granted(caller.may_read, request.position):
            raise _denied("the topic of the message may not be subscribed to")
        group = group_of(name, request)
        if group and not await self._is_readable(caller, group):
            raise _denied("what the group reads may not be subscribed to")
        if name == "CommittedOffsets" and caller.decide(Action.GET, Resource.GROUP, request.group.encode()) is False:
            raise _denied(f"rules deny to look at the group {request.group[:100]!r}")
        if name in _USES and not await self._is_usable(caller, request.group.encode(), _USES[name]):
            raise _denied(f"the group {request.group[:100]!r} is another user's, and no rule allows it")

    async def _require_entries(self, caller: Caller, name: str, request: Any) -> None:
        assert self._by_rules is not None
        try:
            permissions = await self._by_rules(caller)
        except StoreError as error:
            raise RequestError(status_of(error), str(error)) from error
        if name in _ENTRY_CHANGES:
            topic, does = _entry(request), "published to"
            is_allowed = permissions is None or permissions.may_publish(topic)
        else:
            topic, does = _ENTRY_READS[name](request), "subscribed to"
            is_allowed = permissions is None or permissions.may_subscribe(topic)
        if not is_allowed:
            raise _denied(f"no rule allows {topic.decode()} to be {does}, and this call requires it")

    async def _require_handles(self, caller: Caller, handles: Collection[int]) -> None:
        if len(handles) > self._max_handles:
            return  # the service refuses the request
        for handle in set(handles):
            await asyncio.sleep(0)  # there may be many: let other tasks run
            if not await self._is_granted(caller.may_publish, handle):
                raise _denied("the topic of a message may not be published to")

    async def _is_readable(self, caller: Caller, group: bytes) -> bool:
        """Whether the caller may read all queues of the group. True if there is no such group."""
        try:
            state = await group_state(self._store, group)
        except StoreError:
            return False
        return state is None or may_read_group(caller, state)

    async def _is_usable(self, caller: Caller, group: bytes, action: Action) -> bool:
        try:
            return await may_use_group(self._store, caller, group, action)
        except StoreError:
            return False

    async def _is_granted(self, may: Callable[[bytes], bool], position: int) -> bool:
        """Whether `may` allows the topic of the message at a position of the log."""
        try:
            frame = await self._store.message(position)
        except NoSuchMessage:
            return True  # the call then does nothing and reveals nothing
        except StoreError:
            return False
        return may(topic_of(frame))


def _may_see(caller: Caller, name: str, topic_filter: bytes) -> bool:
    """Whether the caller may read what a call shows, or for a list whether it may see the names."""
    if name in _LISTS:
        return caller.may_list(topic_filter)
    verdict = caller.decide(Action.LIST, Resource.GROUP, b"", True) if name == "Groups" else None
    return caller.may_read(topic_filter) if verdict is None else verdict


def group_of(name: str, request: Any) -> bytes:
    """The group whose queues the caller must be allowed to read; b"" if there is none."""
    if name == "RemoveGroup" or (name in _GROUP_CALLS and request.dead_letters):
        group: str = request.group
        return group.encode()
    return b""


def concerns_position(name: str, request: Any) -> bool:
    """Whether a call requires the right to read the topic of the message at `request.position`."""
    return name == "Trace" or (name == "Find" and request.WhichOneof("by") != "key")


def _denied(text: str) -> RequestError:
    return RequestError(grpc.StatusCode.PERMISSION_DENIED, text)
