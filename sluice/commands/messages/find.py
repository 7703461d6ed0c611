"""`sluice find`: find messages by business key or by id."""

import re
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sluice.console.command import (
    Arguments,
    Subparsers,
    UsageError,
    add_json,
    add_limit,
    declare,
    print_result,
)
from sluice.console.records import human, payload_field
from sluice.node import grpc_client

if TYPE_CHECKING:
    from cloud_sdk.blocking import Client
    from cloud_sdk.message import Message

EXAMPLE: Final = "sluice find home --key order-17 --json"
_PAGE: Final = 100
_ROCKETMQ_POSITION: Final = re.compile(r"[0-9A-F]{16}")


def add(subparsers: Subparsers) -> None:
    about = "find messages by their business key or by their id"
    parser = declare(subparsers, "find", about, EXAMPLE, run)
    parser.add_argument("parent", nargs="?", metavar="PARENT", help="the first level of the topics; needed with --key")
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--key", help="the value of the user property `key`")
    text = "the position of the message in the log, or RocketMQ's message id (of a RocketMQ client: needs PARENT)"
    way.add_argument("--id", help=text)
    add_limit(parser, "messages", 100)
    add_json(parser)
    grpc_client.add_arguments(parser)


def run(arguments: Arguments) -> int:
    position = None if arguments.id is None else _position(arguments.id)
    if position is None and arguments.parent is None:
        raise UsageError("--key and the id of a RocketMQ client need PARENT, the first level of the topics to search")
    with grpc_client.connect(arguments) as client:
        found = _found(client, arguments, position)
        for message in islice(found, arguments.limit):
            row = _fields(message)
            print_result(arguments, row, human(row))
        if next(found, None) is not None:
            print("sluice find: there are more messages: raise --limit", file=sys.stderr)
    return 0


def _position(text: str) -> int | None:
    """Return the position that an id names: decimal, or the 16 hexadecimal digits of RocketMQ's id of a message that no
    RocketMQ client sent. None for the id that such a client gave."""
    if _ROCKETMQ_POSITION.fullmatch(text):
        return int(text, 16)
    return int(text) if text.isascii() and text.isdigit() and int(text) < 1 << 64 else None


def _found(client: "Client", arguments: Arguments, position: int | None) -> Iterator["Message"]:
    if position is not None:
        yield client.message(position)
        return
    after = None
    more = True
    while more:
        page = client.find(arguments.parent, key=arguments.key or arguments.id, after=after, limit=_PAGE)
        yield from page
        after = page[-1].position if page else None
        more = len(page) == _PAGE


def _fields(message: "Message") -> dict[str, Any]:
    row = {
        "position": message.position,
        "time_ms": message.store_time,
        "kind": "message",
        "topic": message.topic,
        "publisher": message.publisher,
        "qos": message.qos,
        "retain": message.retain,
        "user_properties": message.user_properties,
    }
    return row | payload_field(message.payload)
