"""The client of a call and its rights. The rules are those of devices and of the native calls (docs/operations.md)."""

from typing import Any, Final, NamedTuple, cast

import grpc
import grpc.aio

from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import RocketError
from gateway.rpc.access.visibility import CALLER, group_state, may_read_group, may_use_group
from gateway.rpc.groups.long_polling import Source
from store.api import Action, GroupStore, Resource

_CLIENT_ID: Final = "x-mq-client-id"
_MAX_CLIENT_ID: Final = 0xFFFF  # bytes; the client id becomes the publisher of records
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_CODES: Final = {
    grpc.StatusCode.UNAUTHENTICATED: pb.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: pb.FORBIDDEN,
    grpc.StatusCode.RESOURCE_EXHAUSTED: pb.TOO_MANY_REQUESTS,
    grpc.StatusCode.INVALID_ARGUMENT: pb.BAD_REQUEST,
}
_DEAD_LETTERS: Final = b"d"


class ClientKey(NamedTuple):
    """Identifies a client: two users with the same client id are two clients."""

    user: bytes  # b"" without a user
    client_id: str


def client_key_of(context: "grpc.aio.ServicerContext[Any, Any]") -> ClientKey:
    """The client of a call. Raises `RocketError` without a valid client id."""
    for name, value in context.invocation_metadata() or ():
        if name == _CLIENT_ID:
            text = value if isinstance(value, str) else value.decode(errors="replace")
            if 0 < len(text.encode()) <= _MAX_CLIENT_ID and "\0" not in text:
                caller = CALLER.get()
                return ClientKey(b"" if caller is None else caller.user_name, text)
    raise RocketError(pb.CLIENT_ID_REQUIRED, f"the client id ({_CLIENT_ID}) is missing or invalid")


def require_publishing(topic: bytes) -> None:
    """Raises `RocketError` unless the caller of this task may publish to `topic`."""
    caller = CALLER.get()
    if caller is not None and (caller.is_revoked or not caller.may_publish(topic)):
        text = f"{topic.decode(errors='replace')} may not be published to"
        caller.note_denied_topic(Action.PUB, topic, text)
        raise RocketError(pb.FORBIDDEN, text)


def require_reading(topic_filter: bytes) -> None:
    """Raises `RocketError` unless the caller of this task may read all messages that the filter matches."""
    caller = CALLER.get()
    if caller is not None and (caller.is_revoked or not caller.may_read(topic_filter)):
        text = f"{topic_filter.decode()} may not be subscribed to, and this call requires it"
        caller.note_denied_topic(Action.SUB, topic_filter, text)
        raise RocketError(pb.FORBIDDEN, text)


async def require_consuming(store: GroupStore, source: Source) -> None:
    """Raises `RocketError` unless the caller of this task may read all messages of `source`, and may use its group.
    Dead letters may be of any topic that the group reads. Raises `StoreError`."""
    is_dead = source.key[:1] == _DEAD_LETTERS
    require_reading(b"#" if is_dead else source.key[1:] + b"/#")
    caller = CALLER.get()
    if caller is None:
        return
    state = await group_state(store, source.group) if is_dead else None
    if state is not None and not may_read_group(caller, state):  # `#` does not cover topics that begin with $
        text = "what the group reads may not be subscribed to"
        caller.note_denial("SUB", f"group:{source.group.decode()}", text)
        raise RocketError(pb.FORBIDDEN, text)
    if not await may_use_group(store, caller, source.group):
        text = f"the group {source.group.decode()!r} is another user's, and no rule allows it"
        caller.note_denial("SUB", f"group:{source.group.decode()}", text)
        raise RocketError(pb.FORBIDDEN, text)


def require_look(group: bytes) -> None:
    """Raises `RocketError` if rules deny the caller of this task to look at a group."""
    caller = CALLER.get()
    if caller is not None and caller.decide(Action.GET, Resource.GROUP, group) is False:
        text = f"rules deny to look at the group {group.decode()!r}"
        caller.note_denial("GET", f"group:{group.decode()}", text)
        raise RocketError(pb.FORBIDDEN, text)


def refusal_reply(method: str, code: grpc.StatusCode, text: str) -> object | None:
    """The reply to a refused call. Returns None for another protocol, or if RocketMQ has no code for the refusal."""
    if not method.startswith(_SERVICE) or code not in _CODES:
        return None
    descriptor = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[method.removeprefix(_SERVICE)]
    reply_type = cast("Any", getattr(pb, descriptor.output_type.name))
    return cast("object", reply_type(status=pb.Status(code=_CODES[code], message=text)))
