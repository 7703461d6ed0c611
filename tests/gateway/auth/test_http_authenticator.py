"""A service that is asked over HTTP who somebody is."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.auth.authenticators.authenticator import Credentials, Denial, Grant, Unavailable
from gateway.auth.authenticators.http_authenticator import HttpAuthenticator
from gateway.config.auth import HttpAuthConfig
from tests.gateway.conftest import MakeNode
from tests.gateway.people import login, set_rules, set_user

ALICE = Credentials(b"alice", b"wonderland", client_id=b"c1", peer="192.0.2.1:5000")


class Service:
    """Answers every request as it is told."""

    def __init__(self) -> None:
        self.answer: object = {"result": "allow"}
        self.status = 200
        self.asked: list[dict[str, Any]] = []
        self.authorization: str | None = None
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self.authorization = request.headers.get("Authorization")
        await self.hold.wait()
        if self.status == 302:
            raise web.HTTPFound("/elsewhere")
        body = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        return web.Response(status=self.status, body=body)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_post("/auth", made)
    server = TestServer(app)
    await server.start_server()
    made.url = str(server.make_url("/auth"))  # type: ignore[attr-defined]
    yield made
    made.hold.set()
    await server.close()


async def ask(service: Service, credentials: Credentials = ALICE, **settings: Any) -> Grant | Denial | None:
    config = HttpAuthConfig(url=service.url, **settings)  # type: ignore[attr-defined]
    authenticator = HttpAuthenticator(config)
    try:
        return await authenticator.authenticate(credentials)
    finally:
        await authenticator.close()


async def test_what_the_service_is_told(service: Service) -> None:
    await ask(service, token="s3cret")
    about = {"front": "mqtt", "username": "alice", "client_id": "c1", "address": "192.0.2.1"}
    assert service.asked.pop() == about | {"password": "wonderland"}
    assert service.authorization == "Bearer s3cret"
    service.answer = {"result": "ignore"}
    assert await ask(service, Credentials(b"", b"t.o.k", is_token=True, front="grpc")) is None
    assert service.asked.pop() == {"front": "grpc", "username": "", "client_id": "", "address": "", "token": "t.o.k"}
    assert service.authorization is None
    assert await ask(service, Credentials(b"\xff", b"x")) is None  # JSON has no such text
    assert not service.asked


async def test_answers(service: Service) -> None:
    assert await ask(service) == Grant(b"alice")
    more = {"user": "bob", "roles": ["a"], "rules": ["allow publish x"], "is_superuser": True, "expire_at": 4e9}
    service.answer = {"result": "allow", "other": 1} | more
    found = await ask(service)
    assert isinstance(found, Grant)
    assert (found.user, found.roles, len(found.rules), found.is_super, found.expires) == (b"bob", (b"a",), 1, True, 4e9)
    service.answer = {"result": "deny"}
    assert isinstance(await ask(service), Denial)
    service.answer = {"result": "allow", "expire_at": 1}
    assert isinstance(await ask(service), Denial)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"allow", b"[]", b"\xff", b"x" * 70_000),
        *({}, {"result": True}, {"result": "ALLOW"}, {"result": "allow", "user": 1}, {"result": "allow", "user": ""}),
        *({"result": "allow", "roles": 7}, {"result": "allow", "rules": ["x"]}),
        *({"result": "allow", "is_superuser": "no"}, {"result": "allow", "expire_at": "soon"}),
    ],
)
async def test_an_answer_that_is_not_understood_refuses_the_login(service: Service, answer: object) -> None:
    service.answer = answer
    with pytest.raises(Unavailable):
        await ask(service)


@pytest.mark.parametrize("status", [204, 302, 401, 404, 500])
async def test_another_status_refuses_the_login(service: Service, status: int) -> None:
    service.status = status
    with pytest.raises(Unavailable, match=str(status)):
        await ask(service)
    assert len(service.asked) == 1  # it was not followed elsewhere


async def test_a_service_that_is_slow_or_away_refuses_the_login(service: Service) -> None:
    service.hold.clear()
    with pytest.raises(Unavailable, match="within"):
        await ask(service, timeout_s=0.05)
    service.url = "http://127.0.0.1:1/"  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="reach"):
        await ask(service)


async def test_devices_of_a_node_that_asks(make_node: MakeNode, service: Service) -> None:
    url = service.url  # type: ignore[attr-defined]
    node = await make_node(mqtt__auth=["password"], auth__chain=["users", "http"], auth__http__url=url)
    await set_user(node, "local", b"secret")
    await set_rules(node, "", "allow publish all/%u")
    device, connack = await login(node.ports.mqtt, b"alice", b"x")
    assert connack.reason == 0
    await device.publish(b"all/alice", b"1")
    service.hold.clear()
    waiting = asyncio.create_task(login(node.ports.mqtt, b"bob", b"x", client_id=b"b"))
    assert (await login(node.ports.mqtt, b"local", b"secret", client_id=b"l"))[1].reason == 0  # it does not wait
    assert not waiting.done()
    service.hold.set()
    assert (await waiting)[1].reason == 0
    service.answer, asked = {"result": "deny"}, len(service.asked)
    assert (await login(node.ports.mqtt, b"alice", b"x"))[1].reason == 0  # as it was answered before
    assert len(service.asked) == asked
    assert (await login(node.ports.mqtt, b"eve", b"x", client_id=b"e"))[1].reason == 0x86
    service.status = 500
    assert (await login(node.ports.mqtt, b"carol", b"x", client_id=b"d"))[1].reason == 0x88
