"""Translates messages of RocketMQ's clients to records of the log, and back.

RocketMQ's fields that MQTT lacks become MQTT user properties, so that devices can read them. MQTT's fields that
RocketMQ lacks become RocketMQ user properties (`MQTT_*` below). Source: docs/rocketmq.md.
"""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

import record
from gateway.mqtt.properties import MessageProperties, build_message_block, read_message_block
from gateway.rocketmq.names import resource_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.receipts import handle_of
from gateway.rocketmq.status import RocketError
from gateway.rpc.limits import RpcLimits
from matcher.names import is_valid_topic, parent_of
from matcher.selector import TAG, is_tag
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_QOS, FLAG_RETAIN, MAX_KEY, MAX_KEYS, Kind
from store.api import DeadLetter

KEY: Final = "key"
ORDERING_KEY: Final = "ordering_key"  # RocketMQ's message group; the native SDK's name for it
MESSAGE_ID: Final = "message-id"  # set by the client
BORN: Final = "born-ms"  # when the client created the message
TRACE: Final = "traceparent"

MQTT_TOPIC: Final = "originMqttTopic"  # the whole topic; the name is that of RocketMQ MQTT
MQTT_QOS: Final = "qosLevel"
MQTT_CLIENT: Final = "clientId"  # the publisher
MQTT_RETAIN: Final = "retain"
MQTT_CONTENT_TYPE: Final = "contentType"
MQTT_RESPONSE_TOPIC: Final = "responseTopic"
MQTT_CORRELATION: Final = "correlationData"  # in base64
MQTT_EXPIRY: Final = "messageExpiryInterval"  # seconds

# Properties of dead letters. The names of the first two are RocketMQ's.
DEAD_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DEAD_QUEUE: Final = "deadLetterQueueId"
DEAD_OFFSET: Final = "deadLetterQueueOffset"
DEAD_REASON: Final = "deadLetterReason"
DEAD_ERROR: Final = "deadLetterError"
DEAD_ATTEMPTS: Final = "deadLetterDeliveryAttempts"
DEAD_FIRST: Final = "deadLetterFirstDelivery"  # ms since 1970-01-01 UTC
DEAD_LAST: Final = "deadLetterLastDelivery"  # ms since 1970-01-01 UTC
_RESERVED: Final = frozenset((TAG, KEY, ORDERING_KEY, MESSAGE_ID, BORN, TRACE))


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


_MAX_DELAY_MS: Final = 4_294_967_000  # the limit of $delayed
_TYPES: Final = frozenset((pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION))
_DIGESTS: Final[dict[int, Callable[[bytes], str]]] = {
    pb.CRC32: lambda body: f"{zlib.crc32(body):X}",
    pb.MD5: _md5,
    pb.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest().upper(),
}


class Outgoing:
    """The record of a message that a client sends."""

    __slots__ = ("due_ms", "frame", "is_half", "message_id", "topic")

    def __init__(self, message: pb.Message, parent: bytes, client_id: str, now_ms: int, limits: RpcLimits) -> None:
        """Raises `RocketError` for an invalid message."""
        system = message.system_properties
        if system.message_type not in _TYPES or system.HasField("lite_topic") or system.HasField("priority"):
            raise RocketError(pb.UNSUPPORTED, "the message type must be normal, FIFO, delay or transaction")
        self.is_half = system.message_type == pb.TRANSACTION
        self.due_ms = _due_ms(system, now_ms)
        self.message_id = system.message_id
        if not 0 < len(self.message_id) <= MAX_KEY:
            raise RocketError(pb.ILLEGAL_MESSAGE_ID, f"a message id has 1 to {MAX_KEY} characters")
        if len(message.user_properties) > limits.max_user_properties:
            most = limits.max_user_properties
            raise RocketError(pb.MESSAGE_PROPERTIES_TOO_LARGE, f"a message has up to {most} user properties")
        user = dict(message.user_properties)
        topic = user.pop(MQTT_TOPIC, "").encode() or parent
        if not is_valid_topic(topic) or parent_of(topic) != parent:
            raise _bad_property(f"{MQTT_TOPIC} {topic[:100]!r} is not an MQTT topic below {parent.decode()!r}")
        fault = limits.fault_of_topic(topic)
        if fault is not None:
            raise RocketError(pb.ILLEGAL_TOPIC, fault)
        self.topic = topic
        flags = _flags(user)
        if self.due_ms is not None:
            flags |= FLAG_DELAYED
        if self.is_half:
            flags |= FLAG_HALF
        try:
            block = build_message_block(_mqtt_properties(user, system))
            body = _body(message, limits.max_message_bytes)
            self.frame = record.frame(int(Kind.MESSAGE), flags, 0, topic, client_id.encode(), block, body, self.due_ms)
        except ValueError as error:
            raise _bad_property(str(error)) from error


class StoredMessage:
    """A message of the log, as clients receive it."""

    __slots__ = ("block", "body", "flags", "position", "publisher", "store_time", "topic")

    def __init__(self, frames: bytes, start: int) -> None:
        _, self.flags, _, self.topic, self.publisher, self.block, self.body = record.decode(frames, start)
        self.position = record.position_of(frames, start)
        self.store_time = record.store_time_of(frames, start)

    def message(self, topic: pb.Resource) -> pb.Message:
        """The message without the fields of a delivery, such as the receipt handle."""
        found = read_message_block(self.block)
        user = dict(found.user)
        system = pb.SystemProperties(
            message_id=user.get(MESSAGE_ID, f"{self.position:016X}"),
            keys=_keys(found.user, user.get(MESSAGE_ID)),
            body_digest=pb.Digest(type=pb.MD5, checksum=_md5(self.body)),
            body_encoding=pb.IDENTITY,
            message_type=pb.FIFO if ORDERING_KEY in user else pb.NORMAL,
        )
        if self.flags & FLAG_HALF:
            system.message_type = pb.TRANSACTION
        born = user.get(BORN, "")
        system.born_timestamp.FromMilliseconds(int(born) if born.isdecimal() and len(born) < 15 else self.store_time)
        system.store_timestamp.FromMilliseconds(self.store_time)
        for name, field in ((TAG, "tag"), (ORDERING_KEY, "message_group"), (TRACE, "trace_context")):
            if name in user:
                setattr(system, field, user[name])
        properties = {name: value for name, value in user.items() if name not in _RESERVED}
        properties.update(self._mqtt_fields(found))
        return pb.Message(topic=topic, user_properties=properties, system_properties=system, body=self.body)

    def delivered(
        self, topic: pb.Resource, partition: int, offset: int, deliveries: int, invisible_ms: int
    ) -> pb.Message:
        """The message with the fields of a delivery to a group."""
        message = self.message(topic)
        system = message.system_properties
        system.receipt_handle = handle_of(partition, offset, deliveries)
        system.queue_id = partition
        system.queue_offset = offset
        system.delivery_attempt = deliveries
        system.invisible_duration.FromMilliseconds(invisible_ms)
        return message

    @staticmethod
    def add_dead_letter(message: pb.Message, letter: DeadLetter) -> None:
        """Add to a message where it came from, and why it is a dead letter."""
        topic = resource_of(letter.queue[1:-3]).name
        message.system_properties.dead_letter_queue.topic = topic
        message.system_properties.dead_letter_queue.message_id = message.system_properties.message_id
        properties = {
            DEAD_TOPIC: topic,
            DEAD_ID: message.system_properties.message_id,
            DEAD_QUEUE: str(int.from_bytes(letter.queue[-2:], "big")),
            DEAD_OFFSET: str(letter.offset),
            DEAD_REASON: letter.reason.name,
            DEAD_ATTEMPTS: str(letter.deliveries),
            DEAD_FIRST: str(letter.first_ms),
            DEAD_LAST: str(letter.last_ms),
        }
        if letter.error:
            properties[DEAD_ERROR] = letter.error.decode(errors="replace")
        message.user_properties.update(properties)

    def message_id(self) -> str:
        return dict(read_message_block(self.block).user).get(MESSAGE_ID, f"{self.position:016X}")

    def _mqtt_fields(self, found: MessageProperties) -> dict[str, str]:
        fields = {MQTT_TOPIC: self.topic.decode(), MQTT_QOS: str(self.flags & FLAG_QOS)}
        if self.publisher:
            fields[MQTT_CLIENT] = self.publisher.decode(errors="replace")
        if self.flags & FLAG_RETAIN:
            fields[MQTT_RETAIN] = "true"
        if found.content_type is not None:
            fields[MQTT_CONTENT_TYPE] = found.content_type
        if found.response_topic is not None:
            fields[MQTT_RESPONSE_TOPIC] = found.response_topic.decode()
        if found.correlation_data is not None:
            fields[MQTT_CORRELATION] = base64.b64encode(found.correlation_data).decode()
        if found.message_expiry is not None:
            fields[MQTT_EXPIRY] = str(found.message_expiry)
        return fields


def _bad_property(text: str) -> RocketError:
    return RocketError(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def _mqtt_properties(user: dict[str, str], system: pb.SystemProperties) -> MessageProperties:
    """The MQTT 5 properties of a message. Raises `RocketError` and ValueError."""
    user.pop(MQTT_CLIENT, None)  # a forwarded message has a new publisher
    properties = MessageProperties(
        content_type=user.pop(MQTT_CONTENT_TYPE, None),
        message_expiry=_number(user, MQTT_EXPIRY, 0xFFFF_FFFF),
    )
    response = user.pop(MQTT_RESPONSE_TOPIC, None)
    if response is not None:
        properties.response_topic = response.encode()
        if not is_valid_topic(properties.response_topic):
            raise _bad_property(f"{MQTT_RESPONSE_TOPIC} {response[:100]!r} is not an MQTT topic")
    correlation = user.pop(MQTT_CORRELATION, None)
    if correlation is not None:
        try:
            properties.correlation_data = base64.b64decode(correlation, validate=True)
        except binascii.Error as error:
            raise _bad_property(f"{MQTT_CORRELATION} is not base64: {error}") from error
    reserved = _RESERVED.intersection(user)
    if reserved:
        names = ", ".join(sorted(reserved))
        raise _bad_property(f"use RocketMQ's system properties instead of the user properties {names}")
    pairs = properties.user
    pairs.extend(user.items())
    pairs += ((MESSAGE_ID, system.message_id), (KEY, system.message_id))  # as in RocketMQ, the id is a key as well
    if system.HasField("born_timestamp"):
        pairs.append((BORN, str(_ms(system.born_timestamp, pb.BAD_REQUEST))))
    if system.tag:
        if not is_tag(system.tag):
            raise RocketError(pb.ILLEGAL_MESSAGE_TAG, f"{system.tag[:100]!r} is not a tag")
        pairs.append((TAG, system.tag))
    if len(system.keys) >= MAX_KEYS or any(not 0 < len(key.encode()) <= MAX_KEY for key in system.keys):
        raise RocketError(pb.ILLEGAL_MESSAGE_KEY, f"a message has up to {MAX_KEYS - 1} keys of 1 to {MAX_KEY} bytes")
    pairs.extend((KEY, key) for key in system.keys)
    if system.message_group:
        pairs.append((ORDERING_KEY, system.message_group))
    if system.trace_context:
        pairs.append((TRACE, system.trace_context))
    return properties


def _keys(user: list[tuple[str, str]], message_id: str | None) -> list[str]:
    """The keys of a message, without its message id."""
    keys = [value for name, value in user if name == KEY]
    return keys[1:] if keys[:1] == [message_id] else keys


def _flags(user: dict[str, str]) -> int:
    """The QoS and RETAIN flags of the record. Removes them from the user properties."""
    qos = _number(user, MQTT_QOS, 2)
    retain = user.pop(MQTT_RETAIN, "false")
    if retain not in ("true", "false"):
        raise _bad_property(f"{MQTT_RETAIN} is true or false, not {retain[:100]!r}")
    return (1 if qos is None else qos) | (FLAG_RETAIN if retain == "true" else 0)


def _number(user: dict[str, str], name: str, maximum: int) -> int | None:
    text = user.pop(name, None)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 10 or int(text) > maximum:
        raise _bad_property(f"{name} is a number from 0 to {maximum}, not {text[:100]!r}")
    return int(text)


def _due_ms(system: pb.SystemProperties, now_ms: int) -> int | None:
    """The time at which to deliver a message, in ms; None for at once. Raises `RocketError`."""
    is_delayed = system.HasField("delivery_timestamp")
    if is_delayed != (system.message_type == pb.DELAY) or bool(system.message_group) != (
        system.message_type == pb.FIFO
    ):
        raise RocketError(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "only a delay message has a delivery timestamp, and only a FIFO message has a message group",
        )
    if not is_delayed:
        return None
    due_ms = _ms(system.delivery_timestamp, pb.ILLEGAL_DELIVERY_TIME)
    if due_ms > now_ms + _MAX_DELAY_MS:
        raise RocketError(pb.ILLEGAL_DELIVERY_TIME, f"the longest delay is {_MAX_DELAY_MS // 1000} s")
    return due_ms if due_ms > now_ms else None


def _ms(time: Timestamp, code: "pb.Code") -> int:
    """Milliseconds since 1970. Raises `RocketError` with `code` for an invalid timestamp."""
    try:
        return int(time.ToMilliseconds())
    except ValueError as error:
        raise RocketError(code, str(error)) from error


def _body(message: pb.Message, max_bytes: int) -> bytes:
    """The uncompressed body. Raises `RocketError`."""
    body = message.body
    digest = message.system_properties.body_digest
    check = _DIGESTS.get(digest.type)
    if check is not None and digest.checksum.upper().lstrip("0") != check(body).lstrip("0"):
        raise RocketError(pb.MESSAGE_CORRUPTED, "the body does not match its digest")
    if message.system_properties.body_encoding == pb.GZIP:
        body = _inflated(body, max_bytes)
    if len(body) > max_bytes:
        raise RocketError(pb.MESSAGE_BODY_TOO_LARGE, f"the body has more than {max_bytes} bytes")
    return body


def _inflated(body: bytes, max_bytes: int) -> bytes:
    """Decompress a body, up to one byte beyond `max_bytes`. RocketMQ's clients send gzip and zlib as GZIP."""
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        inflated = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise RocketError(pb.MESSAGE_CORRUPTED, f"the body cannot be decompressed: {error}") from error
    if len(inflated) <= max_bytes and not inflater.eof:
        raise RocketError(pb.MESSAGE_CORRUPTED, "the compressed body is truncated")
    return inflated
