"""Calls of the management surface at a gateway and at a node of a cluster that does not lead."""

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
from google.protobuf.message import Message

from gateway.auth.authenticators.authenticator import Grant
from gateway.auth.callers import Caller
from gateway.config.config import load
from gateway.management.areas.access import AccessService
from gateway.management.methods import METHODS
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER, RemoteManager
from gateway.node.clustered_node import ClusteredStoreNode
from gateway.node.gateway_node import GatewayNode
from gateway.node.store_node import StoreNode
from gateway.rpc.status import RequestError
from store.api import Action, Resource, Rule
from tests.gateway.test_clustered_node import leads
from tests.gateway.test_clustered_node import node as cluster_node
from tests.waiting import until

PASSWORD = "a long password"
BASIC = "Basic " + b64encode(f"alice:{PASSWORD}".encode()).decode()
BY_NAME = {method.name: method for method in METHODS}
FREE = {"mqtt.port": 0, "mqtt.ws_port": -1, "store.segment_size": 4 << 20}


async def add_alice(access: AccessService, *rules: str) -> None:
    await access.create_user(pb.CreateUserRequest(name="alice", password=PASSWORD), NODE_USER)
    await access.set_rules(pb.SetRulesRequest(user="alice", rules=rules), NODE_USER)


class Split:
    """A store and a gateway in the test's own loop."""

    def __init__(self, store: StoreNode, gateway: GatewayNode, endpoint: str) -> None:
        self.store = store
        self.gateway = gateway
        self.endpoint = endpoint

    async def call(self, request: Message, name: str, authorization: str = BASIC) -> Any:
        """Call a method at the gateway. Raises AioRpcError."""
        method = BY_NAME[name]
        metadata = (("authorization", authorization), ("x-request-id", "r-1"))
        async with grpc.aio.insecure_channel(self.endpoint) as channel:
            ask: Any = channel.unary_unary(
                f"/{method.full_name}", method.request.SerializeToString, method.reply.FromString
            )
            return await ask(request, metadata=metadata)

    async def refused(self, request: Message, name: str, authorization: str = BASIC) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.call(request, name, authorization)
        return error.value.code(), error.value.details() or ""


@pytest.fixture
async def split(tmp_path: Path) -> AsyncIterator[Split]:
    role = {"split.role": "store", "split.listen": f"unix:{tmp_path}/s", "http.port": 0, "grpc.port": -1}
    store = StoreNode(load(None, {**FREE, **role, "data_dir": tmp_path / "data"}, {}))
    address = (await store.start()).addresses["store"]
    role = {"split.role": "gateway", "split.store": address, "split.place": "g", "http.port": -1, "grpc.port": 0}
    config = load(None, {**FREE, **role}, {})
    config.grpc.auth = ["password"]
    gateway = GatewayNode(config)
    try:
        ports = await gateway.start()
        await add_alice(
            AccessService(store._served.engine), "allow publish home/#", "allow LIST topic:#", "allow * cluster:access"
        )
        yield Split(store, gateway, f"127.0.0.1:{ports.grpc}")
    finally:
        await gateway.stop()
        await store.stop()


async def test_a_gateway_passes_calls_on_with_their_caller(split: Split, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await split.call(pb.PublishMessageRequest(topic="home/t", text="hello"), "PublishMessage")
    lines = [line for line in caplog.records if line.message.startswith("management: PublishMessage")]
    assert len(lines) == 1
    facts = vars(lines[0])
    assert (facts["user"], facts["request"]) == ("alice", "r-1")
    assert facts["source"].startswith("127.0.0.1:")
    listed = await split.call(pb.ListTopicsRequest(), "ListTopics")
    assert [row.name for row in listed.topics] == ["home"]


async def test_rights_are_those_of_the_caller(split: Split, caplog: pytest.LogCaptureFixture) -> None:
    code, text = await split.refused(pb.DeleteGroupRequest(group="g"), "DeleteGroup")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "DELETE group:g" in text
    denied = [line.message for line in caplog.records if "is denied to 'alice' from 127.0.0.1:" in line.message]
    assert len(denied) == 1  # at the store, and not at the gateway too
    stranger = "Basic " + b64encode(b"alice:wrong").decode()
    code, _ = await split.refused(pb.ListTopicsRequest(), "ListTopics", stranger)
    assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_who_was_authenticated_elsewhere_is_looked_at_again_by_the_store(split: Split) -> None:
    passing, authority = split.gateway._passing, split.gateway._authority

    async def list_topics(user: bytes, grant: Grant | None = None) -> Message:
        caller = Caller(False, "192.0.2.7:1")
        caller.user_name, caller.grant = user, grant
        manager, method = RemoteManager(authority, caller, caller.peer), BY_NAME["ListTopics"]
        return await passing.ask(split.gateway._stores, method, pb.ListTopicsRequest(), manager, is_last=False)

    await list_topics(b"alice")
    with pytest.raises(RequestError, match="LIST topic"):
        await list_topics(b"bob")
    rule = Rule(True, Action.LIST, Resource.TOPIC, b"#")
    await list_topics(b"bob", Grant(b"bob", rules=(rule,)))
    access = AccessService(split.store._served.engine)
    await access.update_user(pb.UpdateUserRequest(name="alice", disabled=True), NODE_USER)
    with pytest.raises(RequestError) as refused:
        await list_topics(b"alice")
    assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_that_is_too_large_to_be_passed_on(split: Split) -> None:
    request = pb.PublishMessageRequest(topic="home/t", payload=bytes(1 << 20))
    code, text = await split.refused(request, "PublishMessage")
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "another process can be sent 1048576" in text


async def test_the_connections_that_are_kept_are_few(split: Split) -> None:
    passing = split.gateway._passing
    request = pb.PublishMessageRequest(topic="home/t", text="hello")
    await asyncio.gather(*(split.call(request, "PublishMessage") for _ in range(12)))
    assert 0 < len(passing._idle) <= 4


async def test_a_store_that_is_away_is_unavailable(split: Split) -> None:
    split.gateway._stores = ["unix:/nowhere/s"]
    code, text = await split.refused(pb.ListTopicsRequest(), "ListTopics")
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text.startswith("the store at unix:/nowhere/s cannot be reached")


async def ask(port: int, verb: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{port}/api/v1/{path}"
    headers = {"Authorization": BASIC}
    async with aiohttp.ClientSession() as session, session.request(verb, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


def follows(follower: ClusteredStoreNode, leader: ClusteredStoreNode) -> bool:
    followed, served = follower._followed, leader._served
    return followed is not None and served is not None and followed.stats().log_end >= served.engine.stats().log_end


async def test_a_node_that_does_not_lead_passes_calls_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leader, follower = cluster_node(tmp_path, "n1"), cluster_node(tmp_path, "n2")
    for each in (leader, follower):
        each.config.http.auth = ["password"]
    await leader.start()
    try:
        await until(lambda: leads(leader))
        assert leader._served is not None
        access = AccessService(leader._served.engine)
        await add_alice(access, "allow publish home/#", "allow GET cluster:*")
        port = (await follower.start()).http
        try:
            await until(lambda: follows(follower, leader))
            with caplog.at_level(logging.INFO):
                status, stored = await ask(port, "POST", "topics/home%2Ft/messages", {"text": "hello"})
            assert (status, set(stored)) == (200, {"position"})
            (line,) = [line for line in caplog.records if line.message.startswith("management: PublishMessage")]
            assert vars(line)["user"] == "alice"
            assert (await ask(port, "GET", "groups"))[0] == 403
            status, cluster = await ask(port, "GET", "cluster")  # the node itself
            assert (status, cluster["node"]["node"]) == (200, "n2")
            request = pb.CreateUserRequest(name="bob", password=PASSWORD)
            with caplog.at_level(logging.INFO):
                await follower._management.call(BY_NAME["CreateUser"], request, NODE_USER)  # a command at its machine
            assert "from the administration socket of n2" in caplog.records[-1].message
            await leader.stop()
            status, answer = await ask(port, "POST", "topics/home%2Ft/messages", {"text": "hello"})
            assert (status, answer["code"]) == (503, "UNAVAILABLE")
        finally:
            await follower.stop()
    finally:
        await leader.stop()
