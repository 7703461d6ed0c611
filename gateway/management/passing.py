"""Passes calls of the management surface on to the process that has the store.

A gateway passes a call on to the store of its node, and a node of a cluster that does not lead to the one that does.
What a node passed on goes no further: two nodes that take each other for the leader refuse it. Rights are checked, and
lines are left, by the process that carries out the call.

A request is a `_Passed` in MessagePack. An answer is 1 (u8) and the reply as protobuf, or 0 and the status and the text
of the refusal in MessagePack.
"""

from collections.abc import Callable, Sequence
from typing import Final

import grpc
import msgspec
from google.protobuf.message import DecodeError, Message

from gateway.auth.authenticators.authenticator import Grant
from gateway.auth.authority import Authority
from gateway.auth.callers import Caller
from gateway.auth.refusal import ClientRefused
from gateway.management.methods import METHODS, Method
from gateway.management.rights import Manager, NodeUser, RemoteManager
from gateway.management.surface import Management
from gateway.observe.trace_context import CALL_TRACE, read_trace
from gateway.rpc.status import RequestError, status_of
from store.errors import StoreClosed, StoreError
from store.remote.transport.connection import Tls, connect
from store.remote.transport.requests import Refused, Requests
from store.remote.wire.frames import MAX_REQUEST, FrameKind

_MAX_IDLE: Final = 4  # connections without a call that are kept
_BY_NAME: Final = {method.full_name: method for method in METHODS}
_STATUS: Final = {code.name: code for code in grpc.StatusCode}
_NO_LOG: Final = "this node has no log that can be read now, and knows no rules without it"


class _Passed(msgspec.Struct, frozen=True, array_like=True):
    """A call. Its caller was authenticated by the process that sends it."""

    method: str  # its full name
    request: bytes  # protobuf
    is_last: bool  # a node of the cluster passed it on, and nobody does again
    source: str  # address of the caller
    request_id: str
    is_node_user: bool = False  # it came to an administration socket; else the rest says who calls
    user: bytes = b""
    called: bytes = b""  # client id of the caller, by which it may be banned
    grant: Grant | None = None  # of an authenticator that knows the user
    traceparent: str = ""  # of the call; "": none
    tracestate: str = ""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_passed: Final = msgspec.msgpack.Decoder(_Passed).decode
_decode_refusal: Final = msgspec.msgpack.Decoder(tuple[str, str]).decode


class Passing:
    """Passes calls on. Each call under way has a connection of its own. `close` it.

    Who calls it bounds the number of calls, and their time."""

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._idle: list[tuple[str, Requests]] = []  # connections and where they go, the oldest first

    async def ask(
        self, addresses: Sequence[str], method: Method, request: Message, manager: Manager, *, is_last: bool
    ) -> Message:
        """Have a call carried out by the first of these stores that can be reached.

        is_last: this process is a node of a cluster that does not lead. Raises `RequestError`."""
        body = _encode(_passed(method, request, manager, is_last))
        if len(body) > MAX_REQUEST:
            text = (
                f"the call has {len(body)} bytes, and another process can be sent {MAX_REQUEST}: ask the one that leads"
            )
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        address, requests = await self._connect(addresses)
        try:
            answer = await requests.ask(FrameKind.MANAGE, body)
        except (OSError, Refused) as error:
            text = f"the store at {address} did not answer: {error}; what the call began may still happen"
            raise RequestError(grpc.StatusCode.UNAVAILABLE, text) from error
        finally:
            self._put_back(address, requests)
        if answer[:1] != b"\1":
            code, text = _decode_refusal(answer[1:])
            raise RequestError(_STATUS.get(code, grpc.StatusCode.UNKNOWN), text)
        return method.reply.FromString(answer[1:])

    def close(self) -> None:
        """Close the connections. No call is under way any more."""
        for _, requests in self._idle:
            requests.close()
        self._idle = []

    async def _connect(self, addresses: Sequence[str]) -> tuple[str, Requests]:
        why = ""
        for address in addresses:
            while (found := next((each for each in self._idle if each[0] == address), None)) is not None:
                self._idle.remove(found)
                if not found[1].is_lost:
                    return found
            try:
                return address, Requests(await connect(address, self._tls))
            except OSError as error:
                why = f"the store at {address} cannot be reached: {str(error) or 'it does not answer'}"
        raise RequestError(grpc.StatusCode.UNAVAILABLE, why)

    def _put_back(self, address: str, requests: Requests) -> None:
        if requests.is_lost:
            return
        self._idle.append((address, requests))
        if len(self._idle) > _MAX_IDLE:
            self._idle.pop(0)[1].close()


class PassedCalls:
    """Answers calls that others have passed on to this process."""

    def __init__(self, management: Management, authority: Callable[[], Authority | None]) -> None:
        """authority: of the log that this process can read; None: there is none."""
        self._management = management
        self._authority = authority

    async def answer(self, body: bytes) -> bytes:
        """The answer to a request. Raises `Refused`."""
        try:
            passed = _decode_passed(body)
            method = _BY_NAME.get(passed.method)
            if method is None:
                raise RequestError(grpc.StatusCode.UNIMPLEMENTED, f"the store has no method {passed.method[:100]}")
            request = method.request.FromString(passed.request)
            CALL_TRACE.set(read_trace(passed.traceparent, passed.tracestate))
            reply = await self._management.call(
                method, request, await self._manager(passed), may_pass_on=not passed.is_last
            )
            return b"\1" + reply.SerializeToString()
        except (msgspec.MsgspecError, DecodeError) as error:
            raise Refused(f"a call that cannot be read: {error}") from error
        except RequestError as error:
            return _refusal(error.code, str(error))
        except ClientRefused as refused:
            return _refusal(grpc.StatusCode.UNAUTHENTICATED, str(refused))
        except StoreError as error:
            return _refusal(status_of(error), str(error))

    async def _manager(self, passed: _Passed) -> Manager:
        """The caller. Raises `StoreError`, and `ClientRefused` if it is disabled or banned by now."""
        if passed.is_node_user:
            return NodeUser(passed.source)
        authority = self._authority()
        if authority is None:
            raise StoreClosed(_NO_LOG)
        caller = Caller(False, passed.source)
        caller.user_name, caller.called, caller.grant = passed.user, passed.called, passed.grant
        await authority.renew(caller)
        return RemoteManager(authority, caller, passed.source, passed.request_id)


def _passed(method: Method, request: Message, manager: Manager, is_last: bool) -> _Passed:
    about = (method.full_name, request.SerializeToString(), is_last, manager.source, manager.request)
    if not isinstance(manager, RemoteManager):
        return _Passed(*about, is_node_user=True)
    caller, trace = manager.caller, CALL_TRACE.get()
    return _Passed(
        *about,
        user=caller.user_name,
        called=caller.called,
        grant=caller.grant,
        traceparent="" if trace is None else trace.traceparent,
        tracestate="" if trace is None else trace.state,
    )


def _refusal(code: grpc.StatusCode, text: str) -> bytes:
    return b"\0" + _encode((code.name, text))
