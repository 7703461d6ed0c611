"""A node with something of everything that the management surface is about, and ways to call it."""

import asyncio
from base64 import b64encode
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

import record
from gateway.broker.append import append
from gateway.management.methods import METHODS, Method
from gateway.management.proto import management_pb2 as pb
from gateway.node.node import Node
from record.layout import FLAG_DELAYED, FLAG_HALF, Kind
from sluice.node.http_link import HttpLink, ManagementError
from store import control
from store.api import Action, DeadLetterReason, PopRequest, Receipts, Resource, Rule, Start, partition_queue
from store.engine import Engine
from tests.gateway.people import set_user
from tests.gateway.raw import RawClient
from tests.gateway.session.test_durable import durable

BY_NAME = {method.name: method for method in METHODS}
FUTURE_MS = 4_000_000_000_000
OPERATOR, PASSWORD = "operator", "secret"


def engine_of(node: Node) -> Engine:
    assert node._engine is not None
    return node._engine


async def store_messages(node: Node, *topics_and_payloads: tuple[bytes, bytes], flags: int = 1) -> list[int]:
    """The positions of messages of QoS 1 from `device`, which have the key `k`."""
    key = b"\x26\0\x03key\0\x01k"
    due = FUTURE_MS if flags & FLAG_DELAYED else None
    frames = [
        record.frame(int(Kind.MESSAGE), flags, 0, topic, b"device", key, payload, due)
        for topic, payload in topics_and_payloads
    ]
    return list(await append(engine_of(node), frames))


async def give_up(node: Node, group: bytes, parent: bytes, count: int) -> None:
    """Lease all messages of a parent topic, and let `count` become dead letters of the group. It finishes none."""
    engine = engine_of(node)
    queues = tuple(partition_queue(parent, number) for number in range(engine.partition_count(parent)))
    popped = await engine.pop(PopRequest(group, queues, 100, 1 << 20, 600_000, Start.EARLIEST, member=b"m"))
    single = [Receipts(run.queue, run.offset + at, 1, run.deliveries) for run in popped.runs for at in range(run.count)]
    await engine.dead_letter(group, single[:count], DeadLetterReason.FORWARDED, b"m")


class World:
    """A node with messages, a group with dead letters, a client, a timer, a transaction and a user."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.positions: list[int] = []
        self.timer = self.half = 0
        self.requests: list[int] = []  # for access, of the user `other`

    async def fill(self) -> None:
        node = self.node
        await set_user(node, OPERATOR, PASSWORD.encode())
        self.positions = await store_messages(node, *[(b"home/t", b"%d" % number) for number in range(5)])
        await give_up(node, b"g", b"home", 3)
        self.client: RawClient = await durable(node, b"c", expiry=3600)
        await self.client.subscribe((b"home/#", 1))
        (self.timer,) = await store_messages(node, (b"home/later", b"x"), flags=1 | FLAG_DELAYED)
        for name in (b"x", b"y"):
            rule = Rule(True, int(Action.SUB), int(Resource.TOPIC), name)
            asked = control.AccessRequested(rule, FUTURE_MS, b"device")
            self.requests += await append(engine_of(node), [asked.frame(b"other")])
        (self.half,) = await store_messages(node, (b"home/half", b"x"), flags=1 | FLAG_HALF)

    def service(self) -> str:
        """The id of a cloud service that is connected."""
        client = self.node._services.passed_calls._management._clients.of_request("192.0.2.9", "somebody")
        client.called("PublishMessages")
        return client.id

    async def over_http(
        self, method: Method, request: Message, user: str | None = OPERATOR, password: str = PASSWORD
    ) -> Message:
        """Call a method over HTTP, by default as the operator; a user of None is nobody. Raises `Refused`."""
        url = f"http://127.0.0.1:{self.node.ports.http}"

        def call() -> Message:
            link = HttpLink.open(url, user, password)
            try:
                return link.call(method.name, request, method.reply)
            except ManagementError as error:
                raise Refused(error.code, str(error)) from error
            finally:
                link.close()

        return await asyncio.to_thread(call)

    async def over_grpc(self, method: Method, request: Message) -> Message:
        """Call a method over gRPC as the operator. Raises `Refused`."""
        basic = "Basic " + b64encode(f"{OPERATOR}:{PASSWORD}".encode()).decode()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.node.ports.grpc}") as channel:
            ask: Any = channel.unary_unary(
                f"/{method.full_name}", method.request.SerializeToString, method.reply.FromString
            )
            try:
                reply: Message = await ask(request, metadata=(("authorization", basic),))
            except grpc.aio.AioRpcError as error:
                raise Refused(error.code().name, error.details() or "") from error
            return reply


class Refused(Exception):
    """A call that was refused."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


__all__ = ["BY_NAME", "OPERATOR", "PASSWORD", "Refused", "World", "engine_of", "give_up", "pb", "store_messages"]
