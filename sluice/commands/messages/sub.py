"""`sluice sub`: subscribe to topics of any MQTT broker and print the messages."""

import base64
import json
import sys
import time
from typing import TYPE_CHECKING, Final

from sluice.console.command import (
    Arguments,
    Subparsers,
    UsageError,
    add_json,
    declare,
    positive,
    seconds,
    topic_filter,
    within,
)
from sluice.mqtt import arguments as mqtt_arguments

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

EXAMPLE: Final = "sluice sub --topic 'home/#' --qos 1 --json"
TIMED_OUT: Final = 124  # like timeout(1)


def add(subparsers: Subparsers) -> None:
    parser = declare(subparsers, "sub", "subscribe to topics of any MQTT broker and print the messages", EXAMPLE, run)
    text = "the topic filter; may be repeated. If all are replays with an end, the command exits behind the last end"
    parser.add_argument("-t", "--topic", type=topic_filter, required=True, action="append", help=text)
    parser.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="the maximum QoS (default: 0)")
    parser.add_argument("--count", type=positive, metavar="N", help="exit after N messages")
    text = f"exit with code {TIMED_OUT} after this time"
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help=text)
    text = "keep the session for this time after the end; needs --id (MQTT 3.1.1: any number but 0)"
    parser.add_argument("--session", type=within(0, 0xFFFF_FFFF), default=0, metavar="SECONDS", help=text)
    parser.add_argument("--payload-only", action="store_true", help="print payloads without topics")
    add_json(parser)
    mqtt_arguments.add_arguments(parser)


def run(arguments: Arguments) -> int:
    from sluice.mqtt.subscriber import Subscriber  # noqa: PLC0415

    if arguments.session and not arguments.id:
        raise UsageError("--session needs --id")
    subscriber = Subscriber(arguments, lambda message: show(message, arguments))
    try:
        finished = subscriber.run(arguments.count, arguments.timeout)
    finally:
        subscriber.close()
    return 0 if finished else TIMED_OUT


def show(message: "MQTTMessage", arguments: Arguments) -> None:
    """Print one message in the requested form. Raw payloads are written byte for byte."""
    if arguments.json:
        line = json.dumps(as_json(message), ensure_ascii=False).encode()
    elif arguments.payload_only:
        line = bytes(message.payload)
    else:
        line = message.topic.encode() + b" " + message.payload
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def as_json(message: "MQTTMessage") -> dict[str, object]:
    """Return a message for `--json`. A payload that is not UTF-8 becomes `payload_base64` instead of `payload`."""
    facts: dict[str, object] = {"topic": message.topic, "qos": message.qos, "retain": bool(message.retain)}
    facts["received_ms"] = int(time.time() * 1000)
    try:
        facts["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        facts["payload_base64"] = base64.b64encode(message.payload).decode()
    if message.properties is not None and (properties := message.properties.json()):  # type: ignore[no-untyped-call]
        facts["properties"] = properties
    return facts
