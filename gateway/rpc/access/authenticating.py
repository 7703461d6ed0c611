"""A gRPC interceptor that authenticates the caller of each call and checks the caller's rights."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from inspect import isasyncgenfunction
from time import monotonic_ns
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.auth.callers import Caller, Callers
from gateway.auth.refusal import ClientRefused
from gateway.mqtt.reasons import ReasonCode
from gateway.observe.calls import Calls
from gateway.observe.service_clients import CLIENT, ROCKETMQ_NAME, ServiceClients
from gateway.observe.trace_context import CALL_TRACE, TRACEPARENT, TRACESTATE, read_trace
from gateway.rpc.access.rights import NEED_RULES, PREFIX, Rights
from gateway.rpc.access.visibility import CALLER, REVOKED
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import LARGE, MANAGEMENT, ReplyBudgets
from gateway.rpc.status import UNREADABLE, RequestError, abort
from matcher.reserved import KV
from store.api import Store
from store.errors import StoreError

_CODES: Final = {
    ReasonCode.CONNECTION_RATE_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.SERVER_BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.SERVER_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}

_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
_UNIMPLEMENTED: Final = "this method is not implemented"
_UNREADABLE: Final = object()  # stands for a request that cannot be parsed
_NEED_RULES: Final = frozenset(PREFIX + name for name in NEED_RULES)  # also of callers who may do everything
_SELF_CHECKING: Final = frozenset((PREFIX + "Consume",))  # streams that check requests and caller themselves
_SIGNED_TIME: Final = "x-mq-date-time"  # see `gateway.auth.credentials.access_keys`

Context = Any  # `grpc.aio.ServicerContext` of any request and reply
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
# (method, code, text) → the reply that reports a refusal; None if the protocol has none, and the call is aborted.
RefusalReply = Callable[[str, grpc.StatusCode, str], object | None]
# (request, reply): the reply of a unary call is not sent.
OnUnsent = Callable[[object, object], None]


class Authenticating(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic for type checkers only
    """Passes calls on to the services, or refuses them with UNAUTHENTICATED or PERMISSION_DENIED. `Rights` covers the
    native protocol. A service of another protocol checks `CALLER` itself, and `refusal_reply` makes its replies."""

    def __init__(
        self,
        callers: Callers,
        store: Store,
        refusal_reply: RefusalReply,
        limits: RpcLimits,
        on_unsent: OnUnsent,
        calls: Calls,
        clients: ServiceClients,
        is_traced: bool = False,
    ) -> None:
        """is_traced: calls may name a trace in their metadata."""
        self._is_traced = is_traced
        self._callers = callers
        self._refusal_reply = refusal_reply
        self._on_unsent = on_unsent
        self._budgets = ReplyBudgets(limits.max_unread_bytes)
        self._rights = Rights(store, limits.max_handles, callers.permissions_by_rules)
        self._handlers: dict[str, Handler] = {}  # by method
        self._calls = calls
        self._clients = clients

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        known = self._handlers.get(method)
        if known is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return handler  # type: ignore[return-value]  # no such method: gRPC answers UNIMPLEMENTED
            known = self._handlers[method] = self._wrap(method, handler)
        return known

    def _wrap(self, method: str, handler: Handler) -> Handler:
        make_handler: Callable[..., Handler]
        behavior: Callable[..., Any]
        if not handler.request_streaming and not handler.response_streaming:
            make_handler, behavior = grpc.unary_unary_rpc_method_handler, self._unary(method, handler.unary_unary)
        elif not handler.request_streaming:
            make_handler, behavior = (
                grpc.unary_stream_rpc_method_handler,
                self._streaming(method, handler.unary_stream, False),
            )
        else:
            make_handler, behavior = (
                grpc.stream_stream_rpc_method_handler,
                self._streaming(method, handler.stream_stream, method not in _SELF_CHECKING),
            )
        return make_handler(behavior, _safe(handler.request_deserializer), handler.response_serializer)

    def _unary(self, method: str, inner: Any) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            try:
                caller = await self._enter(method, request, context)
                reply = await inner(request, context)
                if caller.permissions is not None or caller.is_revoked:
                    await self._require_still(caller, method, request, reply)
            except RequestError as refusal:
                reply = await self._refuse(method, refusal, context)
            except NotImplementedError:  # the service does not have this method of the protocol
                reply = await self._refuse(method, RequestError(grpc.StatusCode.UNIMPLEMENTED, _UNIMPLEMENTED), context)
            return reply

        async def timed(request: Any, context: Context) -> Any:
            began = monotonic_ns()
            with self._counting(method, context):
                try:
                    return await call(request, context)
                finally:
                    self._calls.time(method[1:], (monotonic_ns() - began) // 1000)

        return timed

    @contextmanager
    def _counting(self, method: str, context: Context) -> Iterator[None]:
        """Count a call by the code that it ends with."""
        code = grpc.StatusCode.OK
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException:
            code = _code_of(context)
            raise
        finally:
            self._calls.count(method[1:], code.name)

    async def _require_still(self, caller: Caller, method: str, request: Any, reply: object) -> None:
        """Check the rights once more before the reply is sent: they may have changed during the call."""
        try:
            await self._require(caller, method, request)
        except BaseException:
            self._on_unsent(request, reply)
            raise

    def _streaming(self, method: str, inner: Any, checks_requests: bool) -> Callable[[Any, Context], Any]:
        def checked(caller: Caller, requests: Any, context: Context) -> Any:
            return _checked_requests(caller, requests, context) if checks_requests else requests

        async def write(requests: Any, context: Context) -> None:
            with self._counting(method, context):
                try:
                    caller = await self._enter(method, requests, context)
                    await inner(checked(caller, requests, context), context)
                except RequestError as refusal:
                    await _end(context, refusal.code, str(refusal))
                except NotImplementedError:
                    await _end(context, grpc.StatusCode.UNIMPLEMENTED, _UNIMPLEMENTED)

        async def generate(requests: Any, context: Context) -> AsyncIterator[Any]:
            with self._counting(method, context):
                try:
                    caller = await self._enter(method, requests, context)
                    async with aclosing(inner(checked(caller, requests, context), context)) as replies:
                        async for reply in replies:
                            # the rights may have changed during the call
                            await self._require(caller, method, requests)
                            yield reply
                except RequestError as refusal:
                    yield await self._refuse(method, refusal, context)

        return generate if isasyncgenfunction(inner) else write

    async def _require(self, caller: Caller, method: str, request: Any) -> None:
        """See `Rights.require`. The audit log has the denials."""
        try:
            await self._rights.require(caller, method, request)
        except RequestError as refusal:
            caller.note_denial(method.rpartition("/")[2], _resource_of(request), str(refusal))
            raise

    async def _enter(self, method: str, request: Any, context: Context) -> Caller:
        """Authenticate the caller and check its rights. Raises `RequestError`."""
        self._calls.under_way += 1
        context.add_done_callback(self._call_ended)
        metadata = dict(context.invocation_metadata() or ())
        peer = unquote(context.peer()).partition(":")[2]
        caller = await self._authenticate(context, metadata, peer)
        if request is _UNREADABLE:
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE)
        if caller.permissions is not None or caller.is_revoked or method in _NEED_RULES:
            await self._require(caller, method, request)
        CALLER.set(caller)
        if self._is_traced:
            CALL_TRACE.set(read_trace(_text(metadata, TRACEPARENT), _text(metadata, TRACESTATE)))
        client = self._clients.of_call(peer, caller.user_name.decode(errors="replace"), metadata)
        client.called(method.rpartition("/")[2])
        context.add_done_callback(client.call_ended)
        CLIENT.set(client)
        if method in LARGE or method.startswith(MANAGEMENT):
            self._budgets.open(context)
        return caller

    def _call_ended(self, _: Context) -> None:
        self._calls.under_way -= 1

    async def _refuse(self, method: str, refusal: RequestError, context: Context) -> Any:
        """The reply that reports the refusal, if the protocol has one. Otherwise abort the call."""
        reply = self._refusal_reply(method, refusal.code, str(refusal))
        if reply is None:
            await _end(context, refusal.code, str(refusal))
        return reply

    async def _authenticate(self, context: Context, metadata: Mapping[str, Any], peer: str) -> Caller:
        names = context.auth_context().get("x509_common_name")
        try:
            name, client_id = names[0] if names else None, metadata.get(ROCKETMQ_NAME, "")
            return await self._callers.identify(
                metadata.get("authorization"), name, peer, metadata.get(_SIGNED_TIME), client_id
            )
        except ClientRefused as refused:
            raise RequestError(_CODES.get(refused.reason, grpc.StatusCode.UNAUTHENTICATED), str(refused)) from refused
        except StoreError as error:
            await abort(context, error)


async def _checked_requests(caller: Caller, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    """The requests of a stream. Ends the call if the caller was revoked or a request cannot be parsed."""
    async for request in requests:
        if caller.is_revoked:
            await _end(context, grpc.StatusCode.UNAUTHENTICATED, REVOKED)
        if request is _UNREADABLE:
            await _end(context, grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE)
        yield request


def _resource_of(request: Any) -> str:
    """What a request is about, for the audit log."""
    if bucket := getattr(request, "bucket", ""):
        return f"topic:{KV.decode()}/{bucket}/{getattr(request, 'key', '') or getattr(request, 'prefix', '')}"
    for kind, name in (("group", "group"), ("topic", "parent")):
        value = getattr(request, name, "")
        if value:
            return f"{kind}:{value}"
    return ""


def _safe(deserialize: Any) -> Callable[[bytes], Any]:
    """A deserializer that does not raise. Otherwise gRPC would log a traceback for every malformed request."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _UNREADABLE

    return read


def _text(metadata: dict[str, str | bytes], name: str) -> str:
    value = metadata.get(name, "")
    return value if isinstance(value, str) else ""


def _code_of(context: Context) -> grpc.StatusCode:
    """The code of a call that ended with an exception: the one that it was aborted with."""
    code = context.code()
    return code if isinstance(code, grpc.StatusCode) else _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)


async def _end(context: "grpc.aio.ServicerContext[object, object]", code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
