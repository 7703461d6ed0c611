"""Access to RocketMQ's protocol: signatures of access keys, and the rules of their users."""

import asyncio
import hmac
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cloud_sdk import Credentials
from gateway.auth.credentials.access_keys import AccessKeys, AccessKeysError, Signature, signature_of
from gateway.node.node import Node
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.management.world import engine_of, give_up, store_messages
from tests.gateway.people import change_password, set_rules, set_user
from tests.gateway.raw import RawClient
from tests.gateway.rocketmq.test_rocket_service import GROUP, TOPIC, Wire
from tests.waiting import PATIENCE_S, patience

__all__ = ["make_node"]  # the fixture

NOW = "%Y%m%dT%H%M%SZ"
LINES = "# key user secret\nAK-1 billing s3cret\n\nAK-2 shop another\n"


def signed(key: str = "AK-1", secret: bytes = b"s3cret", at: float | None = None, client_id: str = "service") -> Any:
    """The metadata of a request."""
    text = time.strftime(NOW, time.gmtime(at))
    digest = hmac.digest(secret, text.encode(), "sha1").hex()
    header = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return (("x-mq-client-id", client_id), ("x-mq-date-time", text), ("authorization", header))


def keys_file(tmp_path: Path, text: str = LINES, mode: int = 0o640) -> Path:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
async def node(make_node: MakeNode, tmp_path: Path) -> Node:
    """Billing may publish and read below home, shop below shop."""
    made = await make_node(
        grpc__auth=["signature", "password"],
        grpc__access_keys=str(keys_file(tmp_path)),
        mqtt__max_wrong_passwords=3,
    )
    await set_rules(made, "billing", "deny publish home/lock", "allow both home/#")
    await set_rules(made, "shop", "allow both shop/#")
    return made


async def code(node: Node, metadata: Any, name: str = "QueryRoute", request: Any = None) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        asked = pb.QueryRouteRequest(topic=TOPIC) if request is None else request
        answer = await Wire(channel).call(name, asked, metadata)
        return int((answer[0] if isinstance(answer, list) else answer).status.code)


def message(topic: str = "home", path: str = "", **system: Any) -> pb.SendMessageRequest:
    fields = {"message_id": "01", "message_type": pb.NORMAL, **system}
    user = {"originMqttTopic": path} if path else {}
    sent = pb.Message(topic=pb.Resource(name=topic), body=b"x", system_properties=fields, user_properties=user)
    return pb.SendMessageRequest(messages=[sent])


def receive(topic: pb.Resource = TOPIC, wait_s: int = 0) -> pb.ReceiveMessageRequest:
    request = pb.ReceiveMessageRequest(group=GROUP, message_queue=pb.MessageQueue(topic=topic, id=-1))
    request.long_polling_timeout.FromSeconds(wait_s)
    return request


async def test_a_valid_signature(node: Node) -> None:
    assert await code(node, signed()) == pb.OK
    assert await code(node, signed("AK-1/region/service")) == pb.OK


@pytest.mark.parametrize(
    "metadata",
    [
        (("x-mq-client-id", "service"),),
        signed(""),  # of a client without credentials
        signed(secret=b"guess"),
        signed("AK-3"),
        signed("AK-2"),  # with the secret of another key
        signed(at=time.time() - 3 * 86_400),
        signed(at=time.time() + 3 * 86_400),
        signed()[::2],  # no time
        (*signed()[:2], ("authorization", "MQv2-HMAC-SHA1 ")),
        (*signed()[:2], ("authorization", "MQv2-HMAC-SHA1 Credential=AK-1, SignedHeaders=x, Signature=")),
    ],
)
async def test_a_call_without_a_valid_signature_is_refused(node: Node, metadata: Any) -> None:
    for name, request in (
        ("QueryRoute", None),
        ("SendMessage", message()),
        ("ReceiveMessage", receive()),
        ("NotifyClientTermination", pb.NotifyClientTerminationRequest()),
    ):
        assert await code(node, metadata, name, request) in (pb.UNAUTHORIZED, pb.TOO_MANY_REQUESTS)


async def test_telemetry_without_a_valid_signature_is_refused(node: Node) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        codecs = (pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString)
        call = channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry", *codecs)(
            metadata=signed(secret=b"guess"), timeout=PATIENCE_S
        )
        assert [each.status.code async for each in call] == [pb.UNAUTHORIZED]


async def test_wrong_signatures_block_their_address_but_no_known_key(node: Node) -> None:
    assert await code(node, signed()) == pb.OK
    codes = [await code(node, signed(secret=b"guess")) for _ in range(6)]
    assert set(codes) == {pb.UNAUTHORIZED, pb.TOO_MANY_REQUESTS}
    assert await code(node, signed("AK-2", b"another")) == pb.TOO_MANY_REQUESTS
    # Wrong signatures of a key that was valid from here count separately: three are checked, then the key waits too.
    assert codes.count(pb.UNAUTHORIZED) == 3


async def test_the_rules_of_the_user_apply(node: Node) -> None:
    billing, shop = signed(), signed("AK-2", b"another")
    assert await code(node, billing, "SendMessage", message()) == pb.OK
    assert await code(node, billing, "SendMessage", message(path="home/lock")) == pb.FORBIDDEN
    assert await code(node, shop, "SendMessage", message()) == pb.FORBIDDEN
    assert await code(node, shop, "SendMessage", message("shop", "shop/x")) == pb.OK
    assert await code(node, shop, "ReceiveMessage", receive()) == pb.FORBIDDEN
    assert await code(node, billing, "ReceiveMessage", receive(pb.Resource(name="%DLQ%group"))) == pb.FORBIDDEN
    acknowledged = pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[pb.AckMessageEntry(receipt_handle="0.0.1")])
    assert await code(node, shop, "AckMessage", acknowledged) == pb.FORBIDDEN
    postponed = pb.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle="0.0.1")
    assert await code(node, shop, "ChangeInvisibleDuration", postponed) == pb.FORBIDDEN
    buried = pb.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle="0.0.1")
    assert await code(node, shop, "ForwardMessageToDeadLetterQueue", buried) == pb.FORBIDDEN
    queue = pb.MessageQueue(topic=TOPIC)
    for name, request in (
        ("PullMessage", pb.PullMessageRequest(group=GROUP, message_queue=queue)),
        ("UpdateOffset", pb.UpdateOffsetRequest(group=GROUP, message_queue=queue)),
        ("GetOffset", pb.GetOffsetRequest(group=GROUP, message_queue=queue)),
        ("QueryOffset", pb.QueryOffsetRequest(message_queue=queue)),
    ):
        assert await code(node, shop, name, request) == pb.FORBIDDEN, name


async def test_a_group_belongs_to_the_user_who_created_it(node: Node) -> None:
    """Another user who may read its topic cannot consume from it or settle its leases."""
    rules = "allow both home/#", "allow subscribe #"
    await set_rules(node, "billing", *rules)
    await set_rules(node, "shop", *rules)
    handle = "0.0.1"
    calls = {
        "ReceiveMessage": receive(),
        "UpdateOffset": pb.UpdateOffsetRequest(group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC)),
        "AckMessage": pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[{"receipt_handle": handle}]),
        "ChangeInvisibleDuration": pb.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=handle),
        "ForwardMessageToDeadLetterQueue": pb.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP, topic=TOPIC, receipt_handle=handle
        ),
    }
    assert await code(node, signed(), "ReceiveMessage", receive()) == pb.MESSAGE_NOT_FOUND
    dead = receive(pb.Resource(name="%DLQ%group"))
    for name, request in [*calls.items(), ("ReceiveMessage", dead)]:
        assert await code(node, signed("AK-2", b"another"), name, request) == pb.FORBIDDEN, name
    await set_rules(node, "shop", *rules, "allow SUB group:group")
    for name, request in [*calls.items(), ("ReceiveMessage", dead)]:
        assert await code(node, signed("AK-2", b"another"), name, request) != pb.FORBIDDEN, name


async def test_dead_letters_of_a_removed_group_need_the_right_to_where_they_come_from(node: Node) -> None:
    """A right to `#` does not cover topics that begin with `$`, and nobody knows any more what the group read."""
    await store_messages(node, (b"$plant/x", b"secret"))
    await give_up(node, GROUP.name.encode(), b"$plant", 1)
    await engine_of(node).remove_group(GROUP.name.encode())
    rules = "allow subscribe #", f"allow SUB group:{GROUP.name}"
    await set_rules(node, "billing", *rules)
    dead = receive(pb.Resource(name=f"%DLQ%{GROUP.name}"))
    for _ in range(2):  # the second time there is a group, which has nothing but these dead letters
        assert await code(node, signed(), "ReceiveMessage", dead) == pb.FORBIDDEN
    await set_rules(node, "billing", *rules, "allow subscribe $plant/#")
    assert await code(node, signed(), "ReceiveMessage", dead) == pb.OK


async def test_recall_and_end_transaction_require_the_right_to_publish(node: Node) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        wire = Wire(channel)
        due = pb.Message(system_properties={"message_type": pb.DELAY}).system_properties
        due.delivery_timestamp.FromSeconds(int(time.time()) + 1000)
        later = await wire.call(
            "SendMessage", message(message_type=pb.DELAY, delivery_timestamp=due.delivery_timestamp), signed()
        )
        half = await wire.call("SendMessage", message(message_type=pb.TRANSACTION), signed())
        recalled = pb.RecallMessageRequest(topic=TOPIC, recall_handle=later.entries[0].recall_handle)
        ended = pb.EndTransactionRequest(
            topic=TOPIC, transaction_id=half.entries[0].transaction_id, resolution=pb.COMMIT
        )
        for name, request in (("RecallMessage", recalled), ("EndTransaction", ended)):
            shop = await wire.call(name, request, signed("AK-2", b"another"))
            assert shop.status.code == pb.FORBIDDEN
            assert (await wire.call(name, request, signed())).status.code == pb.OK


async def test_another_user_with_the_same_client_id_is_another_client(node: Node) -> None:
    """A Telemetry stream ends only when its own client terminates, not another user's client of the same id."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        codecs = (pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString)
        telemetry = channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry", *codecs)
        call = telemetry(metadata=signed(), timeout=PATIENCE_S)
        producer = pb.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[TOPIC])))
        await call.write(producer)
        assert (await call.read()).status.code == pb.OK
        namesake = telemetry(metadata=signed("AK-2", b"another"), timeout=PATIENCE_S)
        await namesake.write(producer)
        assert (await namesake.read()).status.code == pb.OK
        wire = Wire(channel)
        await wire.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(), signed("AK-2", b"another"))
        assert await namesake.read() is grpc.aio.EOF
        await call.write(producer)
        assert (await call.read()).status.code == pb.OK
        await wire.call("NotifyClientTermination", pb.NotifyClientTerminationRequest(), signed())
        assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("change", ["rules", "password"])
async def test_a_caller_that_loses_its_right_during_a_wait_gets_nothing(make_node: MakeNode, change: str) -> None:
    """The caller of a waiting ReceiveMessage loses its right before the message comes."""
    node = await make_node(grpc__auth=["password"], grpc__acl_default="allow")
    await set_user(node, "alice", b"wonderland")
    metadata = (("x-mq-client-id", "c"), ("authorization", Credentials("alice", "wonderland").header()))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        waiting = asyncio.create_task(Wire(channel).call("ReceiveMessage", receive(wait_s=10), metadata))
        assert node._engine is not None
        while not await node._engine.groups(None, 1):  # noqa: ASYNC110  it waits
            await asyncio.sleep(0.01)
        if change == "rules":
            await set_rules(node, "alice", "deny both home/#")
        else:
            await change_password(node, "alice", b"another")
        device = await RawClient.connect(node.ports.mqtt, b"device")
        await device.publish(b"home/x", b"secret", 1)
        (answer,) = await waiting
        assert answer.status.code == (pb.FORBIDDEN if change == "rules" else pb.UNAUTHORIZED)
        if change == "rules":
            await set_rules(node, "alice", "allow both home/#")
        else:
            await change_password(node, "alice", b"wonderland")
        _, reply, _ = await Wire(channel).call("ReceiveMessage", receive(wait_s=10), metadata)
        assert reply.message.system_properties.delivery_attempt == 1  # nobody was sent it before


async def test_signatures_are_ignored_if_only_anonymous_is_configured(make_node: MakeNode) -> None:
    node = await make_node()
    assert await code(node, signed("AK-9", b"whatever"), "SendMessage", message()) == pb.OK
    await set_rules(node, "", "deny both home/#")
    assert await code(node, signed("AK-9", b"whatever"), "SendMessage", message()) == pb.FORBIDDEN


async def test_changed_keys_apply_soon(node: Node, tmp_path: Path) -> None:
    assert await code(node, signed()) == pb.OK
    keys_file(tmp_path, "AK-1 shop new\n")

    async def becomes(metadata: Any, wanted: int) -> None:
        while await code(node, metadata) != wanted:  # noqa: ASYNC110  until the file was read
            await asyncio.sleep(0.05)

    async with patience():
        await becomes(signed(secret=b"new"), pb.OK)
    assert await code(node, signed()) == pb.UNAUTHORIZED
    assert await code(node, signed(secret=b"new"), "SendMessage", message("shop", "shop/x")) == pb.OK


def test_an_invalid_key_file_is_logged_and_the_keys_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = keys_file(tmp_path)
    keys = AccessKeys(path)
    assert keys.find("AK-2").user == b"shop"
    assert not keys.reload()
    keys_file(tmp_path, "AK-1 billing\n")
    assert not keys.reload()
    assert not keys.reload()
    assert keys.find("AK-2").secret == b"another"
    assert caplog.text.count("line 1") == 1
    assert "another" not in repr(keys.find("AK-2"))


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("a b c\na d e\n", 0o600, "line 2"),
        ("a/b c d\n", 0o600, "line 1"),
        ("a b c d\n", 0o600, "line 1"),
        ("a b c\n", 0o644, "everybody may read"),
        ("#" * (1 << 20) + "\n", 0o600, "not a file of up to"),
    ],
)
def test_invalid_key_files(tmp_path: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(AccessKeysError, match=says):
        AccessKeys(keys_file(tmp_path, text, mode))
    with pytest.raises(AccessKeysError, match="cannot read"):
        AccessKeys(tmp_path / "none")


@pytest.mark.parametrize("header", ["", "Basic x", "MQv2-HMAC-SHA256 Credential=a"])
def test_other_authorization_headers(header: str) -> None:
    assert signature_of(header, None) is None


def test_the_parts_of_a_header() -> None:
    header = "MQv2-HMAC-SHA1 Credential=a/b/c,SignedHeaders=x-mq-date-time,  Signature=0F"
    assert signature_of(header, "now") == Signature("a", "0F", "now")
