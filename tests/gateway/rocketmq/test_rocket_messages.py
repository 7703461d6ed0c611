"""RocketMQ messages become records and back without loss. Messages that MQTT cannot express are refused."""

import asyncio
import gzip
import hashlib
import zlib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from cloud_sdk import Message as NativeMessage
from gateway.mqtt.properties import read_message_block
from gateway.rocketmq.access import ClientKey
from gateway.rocketmq.clients import TelemetryClients
from gateway.rocketmq.messages import Outgoing, StoredMessage
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.send_calls import SendCalls
from gateway.rocketmq.status import RocketError
from gateway.rpc.limits import RpcLimits
from gateway.schemas.payload_checks import PayloadChecks
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_QOS, FLAG_RETAIN
from store.api import Appended, Done, Store

NOW_MS = 1_800_000_000_000
MAX_BODY = 4096
LIMITS = RpcLimits(max_message_bytes=MAX_BODY, max_user_properties=20, max_topic_length=300, max_topic_levels=4)
TOPIC = pb.Resource(name="home")


def message(body: bytes = b"on", user: dict[str, str] | None = None, **system: Any) -> pb.Message:
    fields = {"message_id": "01", "message_type": pb.NORMAL, "body_encoding": pb.IDENTITY, **system}
    return pb.Message(topic=TOPIC, user_properties=user or {}, system_properties=fields, body=body)


def outgoing(sent: pb.Message) -> Outgoing:
    return Outgoing(sent, b"home", "service", NOW_MS, LIMITS)


def stored(sent: pb.Message) -> StoredMessage:
    return StoredMessage(record.seal([outgoing(sent).frame], 4096, 1, NOW_MS, 0), 0)


def refusal(sent: pb.Message) -> int:
    with pytest.raises(RocketError) as refused:
        outgoing(sent)
    return refused.value.code


def test_user_properties_are_bounded() -> None:
    user = {f"p{number}": "" for number in range(LIMITS.max_user_properties)}
    outgoing(message(user=user))
    assert refusal(message(user={**user, "more": ""})) == pb.MESSAGE_PROPERTIES_TOO_LARGE


def test_topics_are_bounded() -> None:
    outgoing(message(user={"originMqttTopic": "home/2/3/4"}))
    assert refusal(message(user={"originMqttTopic": "home/2/3/4/5"})) == pb.ILLEGAL_TOPIC
    outgoing(message(user={"originMqttTopic": "home/".ljust(300, "x")}))
    assert refusal(message(user={"originMqttTopic": "home/".ljust(301, "x")})) == pb.ILLEGAL_TOPIC


names = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=8)


@given(
    body=st.binary(max_size=64),
    user=st.dictionaries(names.map("p-{}".format), names, max_size=4),
    tag=st.sampled_from(["", "paid", "paid-late"]),
    keys=st.lists(names.filter(lambda name: len(name.encode()) < 200), max_size=3),
    group=st.sampled_from(["", "order-7"]),
    born=st.integers(0, 4_000_000_000_000),
)
def test_a_message_is_received_as_it_was_sent(
    body: bytes, user: dict[str, str], tag: str, keys: list[str], group: str, born: int
) -> None:
    sent = message(body, user, tag=tag, keys=keys, message_group=group, message_type=pb.FIFO if group else pb.NORMAL)
    sent.system_properties.born_timestamp.FromMilliseconds(born)
    got = stored(sent).delivered(TOPIC, 2, 7, 3, 30_000)
    own, back = sent.system_properties, got.system_properties
    assert got.body == body
    assert {name: value for name, value in got.user_properties.items() if name in user} == user
    assert set(got.user_properties) - set(user) == {"originMqttTopic", "qosLevel", "clientId"}
    assert (back.message_id, back.tag, list(back.keys)) == ("01", tag, keys)
    assert (back.message_group, back.message_type) == (group, own.message_type)
    assert back.born_timestamp.ToMilliseconds() == born
    assert (back.queue_id, back.queue_offset, back.delivery_attempt) == (2, 7, 3)
    assert back.store_timestamp.ToMilliseconds() == NOW_MS
    assert back.body_digest.checksum == hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def test_services_of_the_native_sdk_see_tag_keys_and_message_group() -> None:
    sent = message(b"", {}, tag="paid", keys=["a", "b"], message_group="order-7", message_type=pb.FIFO)
    seen = NativeMessage(record.decode_all(record.seal([outgoing(sent).frame], 4096, 1, NOW_MS, 0))[0], 0, 0)
    assert (seen.tag, seen.keys, seen.ordering_key) == ("paid", ["01", "a", "b"], "order-7")


def test_mqtt_has_fields_for_some_properties() -> None:
    user = {
        "originMqttTopic": "home/hall/lamp",
        "qosLevel": "2",
        "retain": "true",
        "contentType": "text/plain",
        "responseTopic": "home/hall/answer",
        "correlationData": "AAEC",
        "messageExpiryInterval": "60",
    }
    found = stored(message(b"on", {**user, "clientId": "somebody"}))
    assert (found.topic, found.flags, found.publisher) == (b"home/hall/lamp", 2 | FLAG_RETAIN, b"service")
    block = read_message_block(found.block)
    assert (block.content_type, block.response_topic) == ("text/plain", b"home/hall/answer")
    assert (block.correlation_data, block.message_expiry) == (b"\0\1\2", 60)
    assert {name for name, _ in block.user} == {"message-id", "key"}
    assert dict(found.message(TOPIC).user_properties) == {**user, "clientId": "service"}


def test_a_message_without_an_mqtt_topic_goes_to_the_parent_topic_at_qos_1() -> None:
    found = stored(message())
    assert (found.topic, found.flags & FLAG_QOS) == (b"home", 1)


def test_a_device_message_has_its_position_as_its_id() -> None:
    frame = record.frame(1, 1, 0, b"home/x", b"lamp", b"", b"on")
    found = StoredMessage(record.seal([frame], 4096, 1, NOW_MS, 0), 0)
    system = found.message(TOPIC).system_properties
    assert system.message_id == "0000000000001000"
    assert system.born_timestamp.ToMilliseconds() == NOW_MS


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_body_is_stored_as_devices_can_read_it(compress: Any) -> None:
    assert stored(message(compress(b"on" * 1000), body_encoding=pb.GZIP)).body == b"on" * 1000


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (pb.CRC32, f"{zlib.crc32(b'on'):08X}"),
        (pb.CRC32, f"{zlib.crc32(b'on'):x}"),
        (pb.MD5, hashlib.md5(b"on").hexdigest()),
        (pb.SHA1, hashlib.sha1(b"on").hexdigest().upper()),
    ],
)
def test_digests_of_bodies(kind: int, checksum: str) -> None:
    assert stored(message(body_digest=pb.Digest(type=kind, checksum=checksum))).body == b"on"
    assert refusal(message(b"off", body_digest=pb.Digest(type=kind, checksum=checksum))) == pb.MESSAGE_CORRUPTED


def at(seconds: int) -> dict[str, int]:
    return {"seconds": NOW_MS // 1000 + seconds}


def test_delayed_messages() -> None:
    later = outgoing(message(message_type=pb.DELAY, delivery_timestamp=at(60)))
    assert later.due_ms == NOW_MS + 60_000
    assert record.decode(later.frame, 0)[1] & FLAG_DELAYED
    assert record.trailer_of(later.frame, 0) == later.due_ms
    past = outgoing(message(message_type=pb.DELAY, delivery_timestamp=at(-1)))
    assert past.due_ms is None
    assert not record.decode(past.frame, 0)[1] & FLAG_DELAYED


def test_half_messages() -> None:
    half = outgoing(message(message_type=pb.TRANSACTION))
    assert half.is_half
    assert record.decode(half.frame, 0)[1] & FLAG_HALF


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (message(message_id=""), pb.ILLEGAL_MESSAGE_ID),
        (message(message_type=pb.LITE, lite_topic="x"), pb.UNSUPPORTED),
        (message(message_type=pb.PRIORITY, priority=1), pb.UNSUPPORTED),
        (message(message_type=pb.FIFO), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_group="g"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=pb.DELAY), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=pb.DELAY, delivery_timestamp=at(5_000_000)), pb.ILLEGAL_DELIVERY_TIME),
        (message(message_type=pb.DELAY, delivery_timestamp={"seconds": 1 << 62}), pb.ILLEGAL_DELIVERY_TIME),
        (message(born_timestamp={"seconds": 1 << 62}), pb.BAD_REQUEST),
        (message(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG),
        (message(keys=["k"] * 16), pb.ILLEGAL_MESSAGE_KEY),
        (message(keys=["k" * 256]), pb.ILLEGAL_MESSAGE_KEY),
        (message(user={"originMqttTopic": "away/x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"originMqttTopic": "home/+"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"responseTopic": "home/#"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"qosLevel": "3"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"retain": "yes"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"messageExpiryInterval": "4294967296"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"correlationData": "?"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"tag": "paid"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user={"a\0b": "c"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(b"x" * (MAX_BODY + 1)), pb.MESSAGE_BODY_TOO_LARGE),
        (message(gzip.compress(bytes(1 << 20)), body_encoding=pb.GZIP), pb.MESSAGE_BODY_TOO_LARGE),
        (message(b"not compressed", body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
        (message(gzip.compress(b"cut short")[:-9], body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
    ],
)
def test_invalid_messages_are_refused(sent: pb.Message, code: int) -> None:
    assert refusal(sent) == code


async def test_a_large_request_is_translated_in_slices() -> None:
    """Everything else on the loop has its turn meanwhile."""
    appended_frames: list[bytes] = []

    class Appending:
        def append(self, frames: list[bytes], done: Done) -> None:
            appended_frames.extend(frames)
            done(Appended(range(len(frames)), 1))

    calls = SendCalls(cast("Store", Appending()), cast("TelemetryClients", None), LIMITS, PayloadChecks())
    request = pb.SendMessageRequest(messages=[message(b"%d" % number) for number in range(1_000)])
    task = asyncio.create_task(calls.send(request, ClientKey(b"", "service")))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns == 8
    assert [entry.offset for entry in task.result().entries] == list(range(1_000))
    assert [record.decode(frame, 0)[-1] for frame in appended_frames] == [b"%d" % n for n in range(1_000)]
