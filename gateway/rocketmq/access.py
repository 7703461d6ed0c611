"""Who makes a call, and what he may do: the rules that devices have, as for the native calls (docs/operations.md)."""

from typing import Any, Final, NamedTuple, cast

import grpc
import grpc.aio

from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import RocketError
from gateway.rpc.long_polling import Source
from gateway.rpc.visibility import CALLER

_CLIENT_ID: Final = "x-mq-client-id"
_MAX_CLIENT_ID: Final = 0xFFFF  # bytes: it is the publisher of records
_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
_CODES: Final = {
    grpc.StatusCode.UNAUTHENTICATED: pb.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: pb.FORBIDDEN,
    grpc.StatusCode.RESOURCE_EXHAUSTED: pb.TOO_MANY_REQUESTS,
    grpc.StatusCode.INVALID_ARGUMENT: pb.BAD_REQUEST,
}
_DEAD_LETTERS: Final = b"d"


class ClientKey(NamedTuple):
    """A client: another user with the same client id is another one."""

    user: bytes  # b"": nobody in particular
    client_id: str


def who_calls(context: "grpc.aio.ServicerContext[Any, Any]") -> ClientKey:
    """Raises `RocketError`."""
    for name, value in context.invocation_metadata() or ():
        if name == _CLIENT_ID:
            text = value if isinstance(value, str) else value.decode(errors="replace")
            if 0 < len(text.encode()) <= _MAX_CLIENT_ID and "\0" not in text:
                caller = CALLER.get()
                return ClientKey(b"" if caller is None else caller.user_name, text)
    raise RocketError(pb.CLIENT_ID_REQUIRED, f"a client says who it is: {_CLIENT_ID} is missing, or too long")


def require_publishing(topic: bytes) -> None:
    """Raises `RocketError` unless the caller of this task may publish there."""
    caller = CALLER.get()
    if caller is not None and (caller.is_revoked or not caller.may_publish(topic)):
        raise RocketError(pb.FORBIDDEN, f"{topic.decode(errors='replace')} may not be published to")


def require_reading(source: Source) -> None:
    """Raises `RocketError` unless the caller of this task may read all messages that a group receives there. Dead
    letters may be of any topic."""
    caller = CALLER.get()
    wanted = b"#" if source.key[:1] == _DEAD_LETTERS else source.key[1:] + b"/#"
    if caller is not None and (caller.is_revoked or not caller.may_read(wanted)):
        raise RocketError(pb.FORBIDDEN, f"{wanted.decode()} may not be subscribed to, which this asks for")


def refusal_reply(method: str, code: grpc.StatusCode, text: str) -> object | None:
    """The answer to a call that is not served; None where it is none of this protocol, or the protocol has no
    code for that."""
    if not method.startswith(_SERVICE) or code not in _CODES:
        return None
    called = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[method.removeprefix(_SERVICE)]
    answer = cast("Any", getattr(pb, called.output_type.name))
    return cast("object", answer(status=pb.Status(code=_CODES[code], message=text)))
