"""Asks of each gRPC call who makes it and whether he may: an interceptor around the services, which know of nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import isasyncgenfunction
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.auth.callers import Caller, Callers
from gateway.auth.refusal import ClientRefused
from gateway.mqtt.reasons import ReasonCode
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import LARGE, ReplyBudgets
from gateway.rpc.rights import PREFIX, Rights
from gateway.rpc.status import UNREADABLE, RequestError, abort
from gateway.rpc.visibility import CALLER, REVOKED
from store.api import Store
from store.errors import StoreError

_CODES: Final = {
    ReasonCode.CONNECTION_RATE_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.SERVER_BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_UNREADABLE: Final = object()  # stands for a request that is no message
_CHECKED: Final = frozenset((PREFIX + "Consume",))  # streams that check their requests and their caller themselves
_SIGNED: Final = "x-mq-date-time"  # see `gateway.auth.access_keys`

Context = Any  # `grpc.aio.ServicerContext` of any request and reply
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
# A reply that says why a call of a method is not served, where its protocol has one; else the call fails.
Answer = Callable[[str, grpc.StatusCode, str], object | None]


class Authenticating(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic for type checkers only
    """Lets calls through to the services, or ends them with UNAUTHENTICATED or PERMISSION_DENIED. What may be done by
    another protocol than `rights` know, its service asks itself, of `CALLER`; `answer` makes its replies."""

    def __init__(self, callers: Callers, store: Store, answer: Answer, limits: RpcLimits) -> None:
        self._callers = callers
        self._answer = answer
        self._budgets = ReplyBudgets(limits.max_unread_bytes)
        self._rights = Rights(store, limits.max_handles)
        self._handlers: dict[str, Handler] = {}  # by method; of those that there are
        self.calls = 0  # under way

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
                return handler  # type: ignore[return-value]  # there is no such method: gRPC knows what to say
            known = self._handlers[method] = self._around(method, handler)
        return known

    def _around(self, method: str, handler: Handler) -> Handler:
        make: Callable[..., Handler]
        work: Callable[..., Any]
        if not handler.request_streaming and not handler.response_streaming:
            make, work = grpc.unary_unary_rpc_method_handler, self._unary(method, handler.unary_unary)
        elif not handler.request_streaming:
            make, work = grpc.unary_stream_rpc_method_handler, self._streaming(method, handler.unary_stream, False)
        else:
            make, work = (
                grpc.stream_stream_rpc_method_handler,
                self._streaming(method, handler.stream_stream, method not in _CHECKED),
            )
        return make(work, _reading(handler.request_deserializer), handler.response_serializer)

    def _unary(self, method: str, inner: Any) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            try:
                caller = await self._enter(method, request, context)
                reply = await _served(inner, request, context)
                if caller.permissions is not None or caller.is_revoked:  # it may have waited long
                    await self._rights.require(caller, method, request)
            except RequestError as turned:
                reply = await self._told(method, turned, context)
            return reply

        return call

    def _streaming(self, method: str, inner: Any, is_in_pieces: bool) -> Callable[[Any, Context], Any]:
        def given(caller: Caller, asked: Any, context: Context) -> Any:
            return _of_who_is_there(caller, asked, context) if is_in_pieces else asked

        async def write(asked: Any, context: Context) -> None:
            try:
                caller = await self._enter(method, asked, context)
                await _served(inner, given(caller, asked, context), context)
            except RequestError as turned:
                await _end(context, turned.code, str(turned))

        async def generate(asked: Any, context: Context) -> AsyncIterator[Any]:
            try:
                caller = await self._enter(method, asked, context)
                async with aclosing(inner(given(caller, asked, context), context)) as replies:
                    async for reply in replies:
                        await self._rights.require(caller, method, asked)  # it may have waited long
                        yield reply
            except RequestError as turned:
                yield await self._told(method, turned, context)

        return generate if isasyncgenfunction(inner) else write

    async def _enter(self, method: str, request: Any, context: Context) -> Caller:
        """Who calls, and may."""
        self.calls += 1
        context.add_done_callback(self._left)
        caller = await self._caller(context)
        if request is _UNREADABLE:
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE)
        await self._rights.require(caller, method, request)
        CALLER.set(caller)
        if method in LARGE:
            self._budgets.open(context)
        return caller

    def _left(self, _: Context) -> None:
        self.calls -= 1

    async def _told(self, method: str, turned: RequestError, context: Context) -> Any:
        """The reply that says it, or the end of the call."""
        reply = self._answer(method, turned.code, str(turned))
        if reply is None:
            await _end(context, turned.code, str(turned))
        return reply

    async def _caller(self, context: Context) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        names = context.auth_context().get("x509_common_name")
        peer = unquote(context.peer()).partition(":")[2]
        try:
            return await self._callers.identify(
                metadata.get("authorization"), names[0] if names else None, peer, metadata.get(_SIGNED)
            )
        except ClientRefused as refused:
            raise RequestError(_CODES.get(refused.reason, grpc.StatusCode.UNAUTHENTICATED), str(refused)) from refused
        except StoreError as error:
            await abort(context, error)


async def _of_who_is_there(caller: Caller, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    async for request in requests:
        if caller.is_revoked:
            await _end(context, grpc.StatusCode.UNAUTHENTICATED, REVOKED)
        if request is _UNREADABLE:
            await _end(context, grpc.StatusCode.INVALID_ARGUMENT, UNREADABLE)
        yield request


def _reading(deserialize: Any) -> Callable[[bytes], Any]:
    """The same, that does not raise: gRPC would write a page to the log for whoever sends what is no message."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _UNREADABLE

    return read


async def _served(inner: Any, request: Any, context: Context) -> Any:
    """What the service answers. Raises RequestError for a method that the protocol has and it has not."""
    try:
        return await inner(request, context)
    except NotImplementedError:
        raise RequestError(grpc.StatusCode.UNIMPLEMENTED, "a node does not have this method") from None


async def _end(context: "grpc.aio.ServicerContext[object, object]", code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
