"""Event rules of a node in the test's own loop, and an endpoint for webhooks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from google.protobuf.json_format import ParseDict

import record
from gateway.broker.append import append
from gateway.events.event import Event
from gateway.management.areas.dead_letters import DeadLettersService
from gateway.management.areas.events import EventsService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER, Manager
from gateway.node.node import Node
from gateway.node.services import rpc_limits
from record.layout import Kind
from store.api import topic_queue
from store.engine import Engine
from tests.waiting import patience

T = TypeVar("T")
LOOPBACK = ["127.0.0.0/8"]


async def eventually(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the answer is true. Returns it."""
    async with patience():
        while True:
            found = await ask()
            if found:
                return found
            await asyncio.sleep(0.005)


def engine_of(node: Node | Engine) -> Engine:
    if isinstance(node, Engine):
        return node
    assert node._engine is not None
    return node._engine


def service(node: Node) -> EventsService:
    """The methods of the management surface."""
    return EventsService(engine_of(node), node._services.rules, node._authority, rpc_limits(node.config))


def definition(**fields: Any) -> pb.EventRuleDefinition:
    return ParseDict(fields, pb.EventRuleDefinition())


async def set_rule(node: Node, name: str, *, by: Manager = NODE_USER, **fields: Any) -> pb.EventRule:
    """start: `now`, `earliest` or ms. The other fields are those of the request, and of the definition."""
    start, enabled = fields.pop("start", None), fields.pop("enabled", None)
    request = pb.SetEventRuleRequest(name=name, definition=definition(**fields), enabled=enabled)
    if isinstance(start, int):
        request.time_ms = start
    elif start is not None:
        setattr(request, start, True)
    return await service(node).set_event_rule(request, by)


async def rule(node: Node, name: str) -> pb.EventRule:
    return await service(node).get_event_rule(pb.GetEventRuleRequest(name=name), NODE_USER)


async def letters_of(node: Node, name: str) -> list[pb.DeadLetter]:
    """The dead letters of a rule."""
    surface = DeadLettersService(engine_of(node), rpc_limits(node.config))
    reply = await surface.list_dead_letters(pb.ListDeadLettersRequest(group=f"$rule/{name}"), NODE_USER)
    return list(reply.dead_letters)


async def publish(node: Node | Engine, topic: str, *payloads: str | bytes, block: bytes = b"") -> list[int]:
    """Messages of QoS 1 from `device`. Returns their positions."""
    data = [each.encode() if isinstance(each, str) else each for each in payloads]
    frames = [record.frame(int(Kind.MESSAGE), 1, 0, topic.encode(), b"device", block, each) for each in data]
    return list(await append(engine_of(node), frames))


async def events_of(node: Node | Engine, topic: str) -> list[Event]:
    """All messages of a topic."""
    engine, queue = engine_of(node), topic_queue(topic.encode())
    bounds = await engine.bounds(queue)
    events: list[Event] = []
    at = bounds.begin
    while at < bounds.end:
        found = await engine.fetch(queue, at, 1000, 1 << 20)
        events += [Event.of_frame(found.data, start) for start in record.split(found.data)]
        at = found.next_offset
    return events


async def payloads(node: Node | Engine, topic: str) -> list[str]:
    return [each.payload.decode() for each in await events_of(node, topic)]


async def arrived(node: Node | Engine, topic: str, count: int) -> list[str]:
    """The payloads of a topic, as soon as there are so many."""

    async def enough() -> list[str]:
        found = await payloads(node, topic)
        return found if len(found) >= count else []

    return await eventually(enough)


async def settled(node: Node, *names: str) -> None:
    """Wait until rules have handled all that there is."""

    async def is_done() -> bool:
        return not any([(await rule(node, name)).lag for name in names])

    await eventually(is_done)


@dataclass(slots=True)
class Endpoint:
    """What a webhook sends to, and what it got."""

    url: str
    got: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)  # of the next answers; then 200
    headers: dict[str, str] = field(default_factory=dict)  # of the answers


@asynccontextmanager
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint("")

    async def answer(request: web.Request) -> web.Response:
        made.got.append((request.headers, await request.read()))
        status = made.statuses.pop(0) if made.statuses else 200
        return web.Response(status=status, text="not now" if status >= 300 else "", headers=made.headers)

    app = web.Application()
    app.router.add_post("/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    made.url = f"http://127.0.0.1:{port}/hook"
    yield made
    await runner.cleanup()
