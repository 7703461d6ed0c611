"""`POST /events`: CloudEvents over HTTP, in binary, structured and batched mode."""

import asyncio
from collections.abc import Mapping
from typing import Final

import grpc
from aiohttp import web

from gateway.auth.refusal import ClientRefused
from gateway.events.errors import InvalidEvent
from gateway.events.requests import parse_request
from gateway.management.http_api import Identify, json_of, refused
from gateway.management.methods import METHODS
from gateway.management.proto import management_pb2 as pb
from gateway.management.surface import Management
from gateway.rpc.status import RequestError, invalid
from store.errors import StoreError

_BODY_SECONDS: Final = 30.0  # for a body to arrive
_PUBLISH: Final = next(method for method in METHODS if method.name == "PublishEvents")


class CloudEventsApi:
    """Publishes events by the method `PublishEvents` of the management surface, with the rights of the caller."""

    def __init__(self, management: Management, identify: Identify) -> None:
        self._management = management
        self._identify = identify

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/events", self._publish)

    async def _publish(self, request: web.Request) -> web.Response:
        try:
            manager = await self._identify(request)
            unknown = set(request.query) - {"topic"}
            if unknown:
                raise invalid(f"the query may have a topic, and not {sorted(unknown)[0][:40]!r}")
            topic = request.query.get("topic", "")
            events = parse_request(request.headers.get("Content-Type", ""), _headers(request), await _body(request))
            message = pb.PublishEventsRequest(
                events=[pb.PublishedEvent(topic=topic, attributes=given, data=data) for given, data in events]
            )
            reply = await json_of(await self._management.call(_PUBLISH, message, manager))
            return web.Response(body=reply, content_type="application/json")
        except (ClientRefused, RequestError, StoreError) as error:
            return refused(error)
        except (InvalidEvent, UnicodeError) as error:
            return refused(invalid(str(error)))


def _headers(request: web.Request) -> Mapping[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


async def _body(request: web.Request) -> bytes:
    """Raises `RequestError`."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except TimeoutError as error:
        text = f"the body did not arrive within {_BODY_SECONDS:g} s"
        raise RequestError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise invalid("the body is too large") from error
    except web.RequestPayloadError as error:
        raise invalid(f"the body cannot be read: {error}") from error
