"""The management surface as JSON over HTTP.

Each method has the verb and the path of its annotation in `management.proto`. Fields of the request are in the path, in
the query, and for methods with a body in a JSON object. A body has the content type `application/json`: a form of
another web site cannot send it, and so cannot act with the credentials that a browser keeps.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Any, Final

import grpc
import orjson
from aiohttp import web
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from gateway.auth.refusal import ClientRefused
from gateway.management.methods import METHODS, Method
from gateway.management.paging import AT_ONCE, MAX_PAGE
from gateway.management.rights import Manager
from gateway.management.surface import Management
from gateway.mqtt.reasons import ReasonCode
from gateway.observe.trace_context import CALL_TRACE, TRACEPARENT, TRACESTATE, read_trace
from gateway.rpc.status import RequestError, invalid, status_of
from store.errors import StoreError

_BODY_SECONDS: Final = 30.0  # for a body to arrive
_SHOWN: Final = 200  # characters of a path in a refusal
_FIELD: Final = re.compile(r"\{(\w+)\}")
HTTP_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_REFUSALS: Final = {  # of callers; others are UNAUTHENTICATED
    ReasonCode.CONNECTION_RATE_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.SERVER_BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.SERVER_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="sluice", charset="UTF-8"'}
_BOOLEANS: Final = {"true": True, "false": False}

Identify = Callable[[web.Request], Awaitable[Manager]]  # raises `ClientRefused` and `StoreError`


class HttpApi:
    """Serves the management surface on an HTTP server."""

    def __init__(self, management: Management, identify: Identify) -> None:
        self._management = management
        self._identify = identify

    def add_to(self, app: web.Application) -> None:
        """Add the routes of all methods."""
        app.router.add_get("/api/v1/openapi.json", _openapi)
        for method in METHODS:
            path = _FIELD.sub(r"{\1:[^/]+}", method.path)  # a name may have braces, too
            app.router.add_route(method.verb, path, partial(self._answer, method))
        app.router.add_route("*", "/api{rest:(/.*)?}", _unknown)

    async def _answer(self, method: Method, request: web.Request) -> web.Response:
        headers = request.headers
        # Anew for each request: those of a connection share a task.
        CALL_TRACE.set(read_trace(headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")))
        try:
            manager = await self._identify(request)
            message = method.request()
            fields = await _fields(method, request)
            ParseDict(fields, message)
            reply = await json_of(await self._management.call(method, message, manager))
            return web.Response(body=reply, content_type="application/json")
        except (ClientRefused, RequestError, StoreError) as error:
            return refused(error)
        except ParseError as error:
            return _refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def json_of(reply: Message) -> bytes:
    """A reply as JSON, with the names of `management.proto` and all fields but optional ones without a value. The rows
    of a list are converted in slices, between which devices have their turn."""
    rest = type(reply)()
    rest.CopyFrom(reply)
    lists: dict[str, list[dict[str, Any]]] = {}
    for field, rows in reply.ListFields():
        kind = field.message_type if field.is_repeated else None
        if kind is not None and not kind.GetOptions().map_entry and len(rows) > AT_ONCE:
            rest.ClearField(field.name)
            lists[field.name] = found = []
            for number, row in enumerate(rows, 1):
                found.append(_to_dict(row))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
    return orjson.dumps(_to_dict(rest) | lists)


def _to_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)


async def _fields(method: Method, request: web.Request) -> dict[str, Any]:
    """The fields of a request as JSON. Raises `RequestError`."""
    fields: dict[str, Any] = {}
    if method.has_body:
        fields = await json_body(request)
        if request.query:
            raise invalid("this method takes its fields in the body")
    for name in request.query:
        fields[name] = _from_query(method, name, request.query.getall(name))
    for name, value in request.match_info.items():
        if name in fields:
            raise invalid(f"{name} is in the path, and a second time in the request")
        fields[name] = value
    return fields


async def json_body(request: web.Request) -> dict[str, Any]:
    """The JSON object in the body of a request. Raises `RequestError`."""
    if request.content_type != "application/json":
        raise invalid("the body must have the content type application/json")
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = orjson.loads(await request.read() or b"{}")
    except TimeoutError as error:
        text = f"the body did not arrive within {_BODY_SECONDS:g} s"
        raise RequestError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise invalid("the body is too large") from error
    except web.RequestPayloadError as error:
        raise invalid(f"the body cannot be read: {error}") from error
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise invalid("the body is not a JSON object")
    for name, value in body.items():
        if isinstance(value, list) and len(value) > MAX_PAGE:  # converting many would hold up the loop
            raise invalid(f"{name} has {len(value)} values, and a list has {MAX_PAGE} at most")
    return body


def _from_query(method: Method, name: str, values: list[str]) -> Any:
    """The JSON value of a field in the query. Raises `RequestError`."""
    field = method.request.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise invalid(f"{method.name} has no field {name!r}")
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        raise invalid(f"{name} cannot be in the query")
    read = [_BOOLEANS.get(value, value) for value in values] if field.type == FieldDescriptor.TYPE_BOOL else values
    if field.is_repeated:
        return read
    if len(read) > 1:
        raise invalid(f"{name} is there more than once")
    return read[0]


def refused(error: ClientRefused | RequestError | StoreError) -> web.Response:
    """The answer to a request that is not carried out."""
    if isinstance(error, ClientRefused):
        return _refusal(_REFUSALS.get(error.reason, grpc.StatusCode.UNAUTHENTICATED), str(error))
    return _refusal(error.code if isinstance(error, RequestError) else status_of(error), str(error))


def _refusal(code: grpc.StatusCode, text: str) -> web.Response:
    status = HTTP_STATUS.get(code, 500)
    body = {"code": code.name, "message": text}
    return web.json_response(body, status=status, headers=_CHALLENGE if status == 401 else None)


async def _unknown(request: web.Request) -> web.Response:
    """Refuse a path that no method has, or one that has other verbs."""
    path = request.path[:_SHOWN]
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        allowed |= (await resource.resolve(request))[1]
    allowed.discard("*")  # of this route
    if not allowed:
        return _refusal(grpc.StatusCode.NOT_FOUND, f"there is nothing at {path}: see /api/v1/openapi.json")
    verbs = ", ".join(sorted(allowed))
    body = {"code": grpc.StatusCode.UNIMPLEMENTED.name, "message": f"{path} takes {verbs}, and not {request.method}"}
    return web.json_response(body, status=405, headers={"Allow": verbs})


async def _openapi(_request: web.Request) -> web.Response:
    """The description of the surface, which `make proto` writes."""
    text = files("gateway.management").joinpath("openapi.json").read_bytes()
    return web.Response(body=text, content_type="application/json")
