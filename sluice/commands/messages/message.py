"""`sluice message`: find messages by key or id, and tell what became of one."""

import argparse
import re
import sys
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, add_actions, add_limit, declare, print_result
from sluice.console.facts import facts
from sluice.console.machines import machine_text
from sluice.console.messages import message_facts, message_line, message_lines
from sluice.console.progress import ProgressLine
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice message find home --key order-17 --data-dir /var/lib/sluice"
_ROCKETMQ_POSITION: Final = re.compile(r"[0-9A-F]{16}")
_ID: Final = "the id: the position in the log, or the 16 digits of RocketMQ's id"


def add(subparsers: Subparsers) -> None:
    about = "find messages by key or id, and tell what became of one"
    actions = add_actions(declare(subparsers, "message", about, EXAMPLE))
    about = "find messages by their key, or by the id that a RocketMQ client gave; the oldest first"
    finding = declare(actions, "find", about, EXAMPLE, _find)
    finding.add_argument("parent", metavar="PARENT", help="the first level of the topics")
    finding.add_argument("--key", required=True, help="the value of the user property `key`")
    add_limit(finding, "messages", 100)
    management.add_arguments(finding)
    one = declare(actions, "get", "show a message", "sluice message get 8192 --data-dir /var/lib/sluice", _get)
    one.add_argument("id", type=message_id, metavar="ID", help=_ID)
    management.add_arguments(one)
    about = "tell what became of a message: who sent it, who leased it, who acknowledged it, and from where"
    trace = declare(actions, "trace", about, "sluice message trace 8192 --data-dir /var/lib/sluice", _trace)
    trace.add_argument("id", type=message_id, metavar="ID", help=_ID)
    management.add_arguments(trace)


def message_id(text: str) -> int:
    """The position that an id names: decimal, or the 16 hexadecimal digits of RocketMQ's id of a message that no
    RocketMQ client sent."""
    number = int(text, 16) if _ROCKETMQ_POSITION.fullmatch(text) else int(text)
    if not 0 <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is not the id of a message")
    return number


def _find(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.FindMessagesRequest(parent=arguments.parent, key=arguments.key)
    with management.connect(arguments) as link:
        found = management.pages(link, "FindMessages", request, pb.FindMessagesReply, arguments.limit, "messages")
        for message in islice(found, arguments.limit):
            print_result(arguments, message_facts(message), message_line(message))
        if next(found, None) is not None:
            print(f"{arguments.full_name}: there are more messages: raise --limit", file=sys.stderr)
    return 0


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    message = management.ask(arguments, "GetMessage", pb.GetMessageRequest(position=arguments.id), pb.Message)
    print_result(arguments, message_facts(message), message_lines(message))
    return 0


def _trace(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.TraceMessageRequest(position=arguments.id)
    with management.connect(arguments) as link, ProgressLine() as progress:
        while True:
            reply = link.call("TraceMessage", request, pb.TraceMessageReply)
            progress.clear()
            for event in reply.events:
                print_result(arguments, facts(event), _line(event))
            if not reply.HasField("after"):
                return 0
            progress.report("reading the log", reply.read_to - arguments.id, reply.end - arguments.id)
            request.after = reply.after


def _line(event: "pb.TraceEvent") -> str:
    who = f" by {printable(event.who)}" if event.who else ""
    member = f" ({printable(event.member)})" if event.member else ""
    member += f" [{machine_text(event.machine)}]" if event.HasField("machine") else ""
    where = f", offset {event.offset} of {printable(event.queue)}" if event.queue else ""
    until = f", until {format_time(event.until_ms)}" if event.until_ms else ""
    why = f", {event.reason.lower().replace('_', ' ')}" if event.reason else ""
    error = f": {printable(event.error)}" if event.error else ""
    what = event.kind.lower().replace("_", " ")
    return f"{event.position:>12} {format_time(event.time_ms)} {what}{who}{member}{where}{until}{why}{error}"
