"""What a caller has to be allowed for each call: to read all that the reply may be of, or to publish what it is about.

Calls that are about one parent topic ask for `parent/#`; those that are about everything (lists, groups that are taken
away, the trace of a message) for `#`. What is produced is judged message by message. `#` is not about names with a `$`:
lists leave those out that the caller may not read (`gateway.rpc.told`), and a group that is not asked about by a parent
topic is for who may read what each of its queues is of.
"""

from collections.abc import Callable
from typing import Any, Final

from cloud_sdk.proto import sluice_pb2 as pb

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
STREAMS: Final = frozenset(("Produce", "TransactionChecks"))


def group_of(name: str, request: Any) -> bytes:
    """The group whose queues count too, whatever they are of; b"" for none."""
    if name == "RemoveGroup" or (name in _OF_GROUPS and request.dead_letters):
        group: str = request.group
        return group.encode()
    return b""


def shows_one(name: str, request: Any) -> bool:
    """Whether a call is about the message at a position, whose topic counts too."""
    return name == "Trace" or (name == "Find" and request.WhichOneof("by") != "key")
