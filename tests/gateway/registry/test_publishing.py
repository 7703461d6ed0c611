"""What becomes of messages whose payloads do not match the schema of their topic, at every front."""

from typing import Any

import aiohttp
import grpc.aio
import pytest

from cloud_sdk import Client, InvalidArgument, OutgoingMessage
from cloud_sdk.message import STORED
from gateway.mqtt.properties import read_message_block
from gateway.node.node import Node
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from record.layout import FLAG_RETAIN
from tests.gateway.conftest import MakeNode
from tests.gateway.eventing.rules import events_of, eventually
from tests.gateway.people import set_rules
from tests.gateway.raw import CONNACK, PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack, connect, publish
from tests.gateway.registry.schemas import MORE, bind, register
from tests.waiting import PATIENCE_S, until

GOOD, BAD = b'{"t": 1}', b'{"t": "x"}'
TEXT = 'the payload does not match the schema reading: /t: the value is not of type "number"'


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """Topics of each mode. Everybody may publish."""
    made = await make_node()
    await set_rules(made, "", "allow both #")
    await register(made, "reading")
    await bind(made, "strict/#", "reading", "refuse")
    await bind(made, "lax/#", "reading", "mark")
    await bind(made, "moved/#", "reading", "quarantine", "bad/readings")
    return made


async def stored(node: Node, topic: str) -> list[bytes]:
    return [each.payload for each in await events_of(node, topic)]


async def user_properties(node: Node, topic: str) -> list[list[tuple[str, str]]]:
    return [list(read_message_block(each.block).user) for each in await events_of(node, topic)]


async def test_mqtt_5_refuses_with_a_reason(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(publish(5, b"strict/a", BAD, 1, 7), publish(5, b"strict/a", GOOD, 1, 8))
    refused = await client.expect(PUBACK)
    assert (refused.packet_id, refused.body[2]) == (7, 0x99)
    assert TEXT.encode() in refused.body
    assert (await client.expect(PUBACK)).packet_id == 8
    client.send(publish(5, b"strict/a", BAD, 2, 9))
    refused = await client.expect(PUBREC)
    assert (refused.packet_id, refused.body[2]) == (9, 0x99)
    client.send(publish(5, b"strict/a", BAD, 0))
    await client.publish(b"strict/a", GOOD, 2, 9)
    await client.publish(b"free/a", BAD)
    await client.publish(b"strict/b", b"", retain=True)  # which removes what is retained
    await client.disconnect()
    assert await stored(node, "strict/a") == [GOOD, GOOD]
    assert await stored(node, "free/a") == [BAD]
    assert node._schemas.checks.faults["refuse"] == 3
    assert node.counters.messages_refused == 3


async def test_a_client_that_wants_no_reason_gets_none(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5, properties=b"\x17\x00")
    client.send(publish(5, b"strict/a", BAD, 1, 7))
    assert (await client.expect(PUBACK)).body[2:] == b"\x99"


async def test_mqtt_3_acknowledges_and_drops(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 4)
    await client.publish(b"strict/a", BAD, 1, 7)
    await client.publish(b"strict/a", BAD, 2, 8)
    await client.publish(b"strict/a", GOOD, 1, 9)
    assert await stored(node, "strict/a") == [GOOD]
    assert node.counters.messages_refused == 2


async def test_a_duplicate_of_an_accepted_message_is_confirmed(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    client.send(publish(5, b"free/a", BAD, 2, 7))
    assert (await client.expect(PUBREC)).body[2:] == b""
    await bind(node, "free/#", "reading", "refuse")
    client.send(publish(5, b"free/a", BAD, 2, 7, dup=True))
    assert (await client.expect(PUBREC)).body[2:] == b""
    client.send(ack(PUBREL, 7))
    assert (await client.expect(PUBCOMP)).packet_id == 7
    assert await stored(node, "free/a") == [BAD]


async def test_mqtt_marks_and_moves(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.publish(b"lax/a", BAD, retain=True)
    await client.publish(b"lax/a", GOOD)
    await client.publish(b"moved/a", BAD, retain=True)
    await client.publish(b"$delayed/3600/moved/b", BAD, 2)
    await client.publish(b"moved/a", GOOD, retain=True)
    fault = ("schema-error", '/t: the value is not of type "number"')
    subject = ("schema-subject", "reading")
    assert await user_properties(node, "lax/a") == [[fault, subject], []]
    assert await stored(node, "moved/a") == [GOOD]
    moved = await events_of(node, "bad/readings")
    assert [each.payload for each in moved] == [BAD, BAD]
    assert not any(each.flags & FLAG_RETAIN for each in moved)
    origins = [("schema-topic", "moved/a"), ("schema-topic", "moved/b")]
    assert await user_properties(node, "bad/readings") == [[fault, subject, origin] for origin in origins]
    assert node._schemas.checks.figures() == {"payloads_marked": 1, "payloads_quarantined": 2, "payloads_refused": 0}


async def test_wills(node: Node) -> None:
    client = await RawClient.open(node.ports.mqtt, 5)
    client.send(connect(5, b"c", will=(b"strict/a", BAD)))
    connack = await client.expect(CONNACK)
    assert connack.body[1] == 0x99
    assert b"of the will, the payload does not match the schema reading" in connack.body
    old = await RawClient.open(node.ports.mqtt, 4)
    old.send(connect(4, b"c", will=(b"$delayed/5/strict/a", BAD)))
    await old.closed()
    dying = await RawClient.connect(node.ports.mqtt, b"d", 5, will=(b"moved/a", BAD))
    await dying.drop()
    await eventually(lambda: stored(node, "bad/readings"))
    assert ("schema-topic", "moved/a") in (await user_properties(node, "bad/readings"))[0]
    good = await RawClient.connect(node.ports.mqtt, b"g", 5, will=(b"strict/a", GOOD))
    await good.drop()
    await eventually(lambda: stored(node, "strict/a"))


async def test_the_sdk(node: Node) -> None:
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        with pytest.raises(InvalidArgument, match="does not match the schema reading"):
            await client.send("strict/a", BAD)
        await client.send("strict/a", GOOD)
        await client.send("strict/b", b"", retain=True)
        receipts = await client.send_many([OutgoingMessage("moved/a", BAD), OutgoingMessage("lax/a", BAD)])
        assert len(receipts) == 2
        await client.send("moved/b", BAD, deliver_after=3600)
    assert await stored(node, "strict/a") == [GOOD]
    assert await stored(node, "bad/readings") == [BAD, BAD]
    assert [len(each) for each in await user_properties(node, "lax/a")] == [2]


async def test_repeated_work_is_refused_once_for_each_call(node: Node) -> None:
    """The SDK does not send again what the node refuses, and stores nothing behind it."""
    checks = node._schemas.checks
    work = [OutgoingMessage("strict/a", payload) for payload in (GOOD, BAD, GOOD)]
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        for count in (1, 2):
            async with client.idempotent_producer("work", 1) as producer:
                await producer.send_many(work[:1])
                for _ in range(2):
                    with pytest.raises(InvalidArgument, match="message 0: the payload does not match"):
                        await producer.send_many(work[1:])
            assert checks.faults["refuse"] == count
    assert await stored(node, "strict/a") == [GOOD]


async def test_repeated_work_that_is_stored_is_not_checked_by_a_later_schema(node: Node) -> None:
    """Otherwise it could never be completed."""
    work = [OutgoingMessage("later/a", payload) for payload in (GOOD, BAD, GOOD)]
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        async with client.idempotent_producer("work", 1) as producer:
            await producer.send_many(work)
        await bind(node, "later/#", "reading", "refuse")
        async with client.idempotent_producer("work", 1) as producer:
            assert await producer.send_many(work) == [STORED] * 3
            with pytest.raises(InvalidArgument, match="message 1: the payload does not match"):
                await producer.send_many(work)
    assert await stored(node, "later/a") == [GOOD, BAD, GOOD]


async def test_http(node: Node) -> None:
    url = f"http://127.0.0.1:{node.ports.http}"
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/api/v1/topics/strict%2Fa/messages", json={"text": BAD.decode()}) as answer:
            assert answer.status == 400
            assert (await answer.json())["message"] == TEXT
        async with session.post(f"{url}/api/v1/topics/moved%2Fa/messages", json={"text": BAD.decode()}) as answer:
            assert answer.status == 200
        headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
        async with session.post(f"{url}/events?topic=strict/a", data=BAD, headers=headers) as answer:
            assert answer.status == 400
            assert TEXT in (await answer.json())["message"]
    assert await stored(node, "bad/readings") == [BAD]


async def test_rocketmq(node: Node) -> None:
    async def send(topic: str, **system: Any) -> pb.SendMessageResponse:
        fields = {"message_id": "01", "message_type": pb.NORMAL, **system}
        parent, given = pb.Resource(name=topic.partition("/")[0]), {"originMqttTopic": topic}
        message = pb.Message(topic=parent, body=BAD, system_properties=fields, user_properties=given)
        path = "/apache.rocketmq.v2.MessagingService/SendMessage"
        codecs = (pb.SendMessageRequest.SerializeToString, pb.SendMessageResponse.FromString)
        request, metadata = pb.SendMessageRequest(messages=[message]), (("x-mq-client-id", "c"),)
        answer = await channel.unary_unary(path, *codecs)(request, metadata=metadata, timeout=PATIENCE_S)
        assert isinstance(answer, pb.SendMessageResponse)
        return answer

    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.ports.grpc}") as channel:
        refused = await send("strict/a")
        assert (refused.status.code, refused.status.message) == (pb.BAD_REQUEST, TEXT)
        assert (await send("moved/a")).status.code == pb.OK
        assert (await send("lax/a")).status.code == pb.OK
        # A transaction ends by the position of its message, so none goes to quarantine.
        half = await send("moved/a", message_type=pb.TRANSACTION)
        assert half.status.code == pb.BAD_REQUEST
    assert await stored(node, "bad/readings") == [BAD]
    assert [name for name, _ in (await user_properties(node, "lax/a"))[0] if name.startswith("schema-")] == [
        "schema-error",
        "schema-subject",
    ]


async def test_a_message_may_name_an_older_version(node: Node) -> None:
    await register(node, "reading", MORE)
    old, new = b"\x00\x00\x00\x00\x01", b"\x00\x00\x00\x00\x02"
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    humid = b'{"t": 1, "h": 2}'
    sent = [old + GOOD, old + humid, new + humid, humid, b"\x00\x00\x00\x00\x09" + GOOD]
    for number, payload in enumerate(sent, 1):
        client.send(publish(5, b"strict/a", payload, 1, number))
    answers = [await client.expect(PUBACK) for _ in sent]
    assert sorted(each.packet_id for each in answers if each.body[2:3] == b"\x99") == [2, 5]


async def test_bindings_follow_the_log(node: Node, make_node: MakeNode) -> None:
    """A node that starts knows them, and one that is told nothing hears of changes all the same."""
    await node.stop()
    node = await make_node()
    checks = node._schemas.checks
    assert checks.fault(b"strict/a", BAD) is not None
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        await set_rules(node, "", "allow both #", "allow both $kv/#")
        await client.bucket("schemas").remove("binding/strict/%23")
    await until(lambda: checks.fault(b"strict/a", BAD) is None)
