"""`sluice pub`: publish messages from the command line, a file or standard input to any MQTT broker."""

import json
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, declare, positive
from sluice.mqtt import arguments as mqtt_arguments

if TYPE_CHECKING:
    from sluice.mqtt.publisher import Publisher

EXAMPLE: Final = "sluice pub --topic home/bath/temp --message 21.5 --qos 1"


def add(subparsers: Subparsers) -> None:
    parser = declare(subparsers, "pub", "publish messages to any MQTT broker", EXAMPLE, run)
    parser.add_argument("-t", "--topic", required=True, help="the topic to publish to")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("-m", "--message", help="the payload; an empty one with --retain clears the retained message")
    source.add_argument("-f", "--file", type=Path, help="a file with the payload")
    source.add_argument("-l", "--lines", action="store_true", help="publish each line of standard input (the default)")
    parser.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="the QoS (default: 0)")
    parser.add_argument("-r", "--retain", action="store_true", help="publish as the retained message of the topic")
    parser.add_argument(
        "--count", type=positive, default=1, metavar="N", help="publish --message or --file N times (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    mqtt_arguments.add_arguments(parser)


def run(arguments: Arguments) -> int:
    from sluice.mqtt.connection import BrokerError  # noqa: PLC0415
    from sluice.mqtt.publisher import Publisher  # noqa: PLC0415

    try:
        publisher = Publisher(arguments)
    except BrokerError as failure:
        print(f"sluice pub: {failure}", file=sys.stderr)
        return 2
    started = time.monotonic()
    error = ""
    try:
        publisher.connect()
        for payload in payloads(arguments):
            publisher.publish(payload)
        publisher.finish()
    except (BrokerError, OSError, ValueError) as failure:
        error = str(failure)
        print(f"sluice pub: {error}", file=sys.stderr)
    finally:
        publisher.close()
    if arguments.json:
        report(publisher, time.monotonic() - started, error)
    return 1 if error else 0


def payloads(arguments: Arguments) -> Iterator[bytes]:
    """Yield the payloads in order, lines without their line ends."""
    if arguments.message is not None:
        yield from repeat(arguments.message.encode(), arguments.count)
    elif arguments.file is not None:
        yield from repeat(arguments.file.read_bytes(), arguments.count)
    else:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")


def report(publisher: "Publisher", seconds: float, error: str) -> None:
    facts = {"sent": publisher.sent, "acknowledged": publisher.acknowledged, "seconds": round(seconds, 6)}
    print(json.dumps(facts | ({"error": error} if error else {})))
