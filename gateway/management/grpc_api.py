"""The management surface on the gRPC port. The interceptor of the port authenticates the callers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import Message

from gateway.auth.authority import Authority
from gateway.management.methods import METHODS, PACKAGE, Method
from gateway.management.rights import REQUEST_ID, RemoteManager
from gateway.management.surface import Management
from gateway.observe.trace_context import CALL_TRACE, TRACEPARENT, TRACESTATE, read_trace
from gateway.rpc.access.visibility import CALLER
from gateway.rpc.reply_budget import reply_budget

Behavior = Callable[[Message, Any], Awaitable[Message]]
_SERVICES: Final = sorted({method.service for method in METHODS})


def handlers(management: Management, authority: Authority) -> "Sequence[grpc.GenericRpcHandler[Any, Any]]":
    """The handlers of all services."""
    return [
        grpc.method_handlers_generic_handler(
            f"{PACKAGE}.{service}",
            {method.name: _handler(method, management, authority) for method in METHODS if method.service == service},
        )
        for service in _SERVICES
    ]


def _handler(method: Method, management: Management, authority: Authority) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(
        _behavior(method, management, authority),
        request_deserializer=method.request.FromString,
        response_serializer=method.reply.SerializeToString,
    )


def _behavior(method: Method, management: Management, authority: Authority) -> Behavior:
    async def answer(request: Message, context: Any) -> Message:
        caller = CALLER.get()
        assert caller is not None  # the interceptor has set it
        peer = unquote(context.peer()).partition(":")[2]
        metadata = dict(context.invocation_metadata() or ())
        CALL_TRACE.set(read_trace(metadata.get(TRACEPARENT, ""), metadata.get(TRACESTATE, "")))
        request_id = metadata.get(REQUEST_ID, "")
        async with reply_budget() as budget:
            reply = await management.call(method, request, RemoteManager(authority, caller, peer, request_id))
            budget.add(reply.ByteSize())
        return reply

    return answer
