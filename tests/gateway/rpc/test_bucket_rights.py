"""Who may read and change entries of buckets: rules say so, and no default does."""

import pytest

from cloud_sdk import Bucket, Client, Credentials, InvalidArgument, NotAllowed
from gateway.management.proto import management_pb2 as management
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.mqtt import wire
from tests.gateway.people import access, remove_user, set_rules, set_user
from tests.gateway.raw import PUBACK, RawClient

__all__ = ["make_node"]  # the fixture

ALICE = Credentials("alice", "wonderland")


def client(node: Node, credentials: Credentials | None = ALICE) -> Client:
    return Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=0, credentials=credentials)


async def keys(bucket: Bucket, prefix: str = "") -> list[str]:
    return [entry.key async for entry in bucket.entries(prefix)]


@pytest.mark.parametrize("rules", [(), ("allow both #",), ("allow both $kv/other/#", "allow both +/a/#")])
async def test_no_default_opens_a_bucket(make_node: MakeNode, rules: tuple[str, ...]) -> None:
    node = await make_node(grpc__auth=["anonymous"], grpc__acl_default="allow")
    await set_rules(node, "", *rules)
    async with client(node, None) as anybody:
        await anybody.send("home/x", b"x")
        bucket = anybody.bucket("a")
        for call in (bucket.put("k", b"1"), bucket.remove("k")):
            with pytest.raises(NotAllowed, match=r"no rule allows \$kv/a/k to be published to"):
                await call
        with pytest.raises(NotAllowed, match=r"no rule allows \$kv/a/k to be subscribed to"):
            await bucket.get("k")
        for listing in (bucket.page(), bucket.changes()):
            with pytest.raises(NotAllowed, match=r"no rule allows \$kv/a/# to be subscribed to"):
                await listing


async def test_rules_allow_parts_of_a_bucket(make_node: MakeNode) -> None:
    node = await make_node(grpc__auth=["password"])
    await set_user(node, "alice", b"wonderland")
    await set_rules(node, "alice", "allow both $kv/a/mine/#", "allow SUB topic:$kv/a/k")
    async with client(node) as alice:
        bucket = alice.bucket("a")
        await bucket.put("mine/1", b"1")
        assert await bucket.get("k") is None
        assert await keys(bucket, "mine/") == await keys(bucket, "mine/1") == ["mine/1"]
        assert (await bucket.changes(prefix="mine/")).is_reset
        for call in (bucket.put("k", b"1"), bucket.page("mine"), bucket.get("other"), alice.bucket("b").get("k")):
            with pytest.raises(NotAllowed):
                await call
        for wild in ("+", "#", "mine/#"):
            with pytest.raises((NotAllowed, InvalidArgument)):
                await bucket.get(wild)
        with pytest.raises((NotAllowed, InvalidArgument)):
            await alice.bucket("a/mine").put("k", b"1")
        with pytest.raises(NotAllowed):
            await alice.bucket("+").page()


async def test_a_super_user_may_use_all_buckets(make_node: MakeNode) -> None:
    node = await make_node(grpc__auth=["password"])
    await set_user(node, "alice", b"wonderland")
    await access(node).update_user(management.UpdateUserRequest(name="alice", super_user=True), NODE_USER)
    async with client(node) as alice:
        await alice.bucket("a").put("k", b"1")
        assert await keys(alice.bucket("a")) == ["k"]
        await remove_user(node, "alice")
        with pytest.raises(NotAllowed):
            await alice.bucket("a").get("k")


async def test_entries_are_no_topics(make_node: MakeNode) -> None:
    node = await make_node()
    await set_rules(node, "", "allow both $kv/#")
    async with client(node, None) as anybody:
        await anybody.bucket("a").put("k", b"1")
        with pytest.raises(InvalidArgument, match="not a topic name that may be published to"):
            await anybody.send("$kv/a/k", b"2")
        assert await anybody.topics() == []


async def test_devices_do_not_reach_entries(make_node: MakeNode) -> None:
    node = await make_node()
    await set_rules(node, "", "allow both $kv/#")
    device = await RawClient.connect(node.ports.mqtt, b"device", 5)
    names = (b"$kv/a/k", b"$kv/#", b"$kv", b"$share/g/$kv/#", b"$replay/0/$kv/a/k")
    assert await device.subscribe(*((name, 0) for name in names)) == b"\x8f" * len(names)
    device.send(wire.publish(5, b"$kv/a/k", b"x", qos=1))
    assert (await device.expect(PUBACK)).reason == 0x90


async def test_the_check_of_rules_knows_entries(make_node: MakeNode) -> None:
    node = await make_node()
    asked = management.CheckRulesRequest(action="PUB", resource="topic:$kv/a/k", by_default=True)
    verdict = await access(node).check_rules(asked, NODE_USER)
    assert (verdict.allowed, verdict.because) == (False, "no rule applies, which entries of buckets need")
    await set_rules(node, "", "allow both $kv/#")
    assert (await access(node).check_rules(asked, NODE_USER)).allowed
