"""`sluice pub`: publish messages from the command line, a file or standard input to any MQTT broker."""

import json
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Final

from sluice.console.command import Arguments, CommandError, Subparsers, add_json, declare, positive
from sluice.mqtt import arguments as mqtt_arguments

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
    text = "publish --message or --file N times (default: 1)"
    parser.add_argument("--count", type=positive, default=1, metavar="N", help=text)
    add_json(parser)
    mqtt_arguments.add_arguments(parser)


def run(arguments: Arguments) -> int:
    from sluice.mqtt.connection import BrokerError  # noqa: PLC0415
    from sluice.mqtt.publisher import Publisher  # noqa: PLC0415

    publisher = Publisher(arguments)
    started = time.monotonic()
    failure: Exception | None = None
    try:
        publisher.connect()
        for payload in payloads(arguments):
            publisher.publish(payload)
        publisher.finish()
    except (BrokerError, OSError, ValueError) as error:
        failure = error
    finally:
        publisher.close()
    if arguments.json:
        spent = round(time.monotonic() - started, 6)
        facts = {"sent": publisher.sent, "acknowledged": publisher.acknowledged, "seconds": spent}
        print(json.dumps(facts | ({"error": str(failure)} if failure else {})))
    if failure:
        raise CommandError(str(failure))
    return 0


def payloads(arguments: Arguments) -> Iterator[bytes]:
    """Yield the payloads in order, lines without their line ends."""
    if arguments.message is not None:
        yield from repeat(arguments.message.encode(), arguments.count)
    elif arguments.file is not None:
        yield from repeat(arguments.file.read_bytes(), arguments.count)
    else:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
