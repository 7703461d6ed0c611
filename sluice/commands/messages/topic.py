"""`sluice topic`: list the topics of a node, look at one, read its messages, and publish one."""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluice.console.command import (
    Arguments,
    Subparsers,
    add_actions,
    add_limit,
    declare,
    offset,
    positive,
    print_result,
    within,
)
from sluice.console.facts import facts
from sluice.console.messages import message_facts, message_line, message_lines
from sluice.console.records import printable
from sluice.console.times import format_size, format_time, milliseconds, parse_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice topic list home --depth 2 --data-dir /var/lib/sluice"
_INDENT: Final = "  "


def add(subparsers: Subparsers) -> None:
    about = "list the topics of a node, look at one, read its messages, publish one"
    actions = add_actions(declare(subparsers, "topic", about, EXAMPLE))
    listing = declare(actions, "list", "list the topics that have had messages", EXAMPLE, _list)
    text = "show the topics below these levels, such as home/bath"
    listing.add_argument("above", nargs="?", default="", metavar="LEVELS", help=text)
    listing.add_argument("--depth", type=positive, default=1, metavar="N", help="show N levels (default: 1)")
    listing.add_argument("--prefix", metavar="TEXT", help="list whole topics that begin with this instead")
    listing.add_argument("--after", metavar="NAME", help="begin after this name of the first level that is shown")
    text = "also show the rate of the last minute, and when the last message was stored"
    listing.add_argument("--rates", action="store_true", help=text)
    add_limit(listing, "names", 1000)
    management.add_arguments(listing)
    about = "show the size of a topic, its last message and its retained message"
    one = declare(actions, "get", about, "sluice topic get home/bath/temp --data-dir /var/lib/sluice", _get)
    one.add_argument("topic", metavar="TOPIC", help="the topic")
    management.add_arguments(one)
    about = "print messages of a topic, or of a partition; by default the newest ones"
    example = "sluice topic browse home/bath/temp --since 2025-06-01T12:00:00Z --limit 20 --data-dir /var/lib/sluice"
    browsing = declare(actions, "browse", about, example, _browse)
    browsing.add_argument("topic", metavar="TOPIC", help="the topic, or with --partition a parent topic")
    browsing.add_argument("--partition", type=within(0, 1023), metavar="N", help="read this partition of the parent")
    begin = browsing.add_mutually_exclusive_group()
    begin.add_argument("--offset", type=offset, metavar="OFFSET", help="begin at this offset")
    begin.add_argument("--since", type=parse_time, metavar="TIME", help="begin at this time (ISO 8601)")
    add_limit(browsing, "messages", 20)
    management.add_arguments(browsing)
    about = "publish a message; it is stored when the command returns"
    example = "sluice topic publish home/bath/temp 21.5 --qos 1 --data-dir /var/lib/sluice"
    publishing = declare(actions, "publish", about, example, _publish)
    publishing.add_argument("topic", metavar="TOPIC", help="the topic; $delayed/<seconds>/<topic> delays the message")
    text = "the payload (default: standard input, byte for byte)"
    publishing.add_argument("payload", nargs="?", metavar="PAYLOAD", help=text)
    publishing.add_argument("--qos", type=within(0, 2), default=0, help="the QoS: 0, 1 or 2 (default: 0)")
    publishing.add_argument("--retain", action="store_true", help="retain the message")
    publishing.add_argument("--content-type", default="", metavar="TYPE", help="the content type")
    text = "a user property; may be repeated"
    publishing.add_argument("--property", action="append", default=[], type=_property, metavar="NAME=VALUE", help=text)
    management.add_arguments(publishing)


def _property(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _list(arguments: Arguments) -> int:
    above = arguments.above
    if above and not above.endswith("/"):
        above += "/"
    with management.connect(arguments) as link:
        shown = _tree(link, arguments, above) if arguments.prefix is None else _topics(link, arguments)
        for text in islice(shown, arguments.limit):
            print(text)
        if next(shown, None) is not None:
            text = "there are more names: continue with --after, or raise --limit"
            print(f"{arguments.full_name}: {text}", file=sys.stderr)
    return 0


def _topics(link: management.ManagementLink, arguments: Arguments) -> Iterator[str]:
    """Yield a line for each topic that begins with the prefix."""
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.SearchTopicsRequest(prefix=arguments.prefix, after=arguments.after)
    for topic in management.pages(link, "SearchTopics", request, pb.SearchTopicsReply, arguments.limit, "topics"):
        yield json.dumps({"topic": topic}) if arguments.json else printable(topic)


def _tree(link: management.ManagementLink, arguments: Arguments, above: str, depth: int = 1) -> Iterator[str]:
    """Yield a line for each name below `above`, and those of the levels below it."""
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListTopicsRequest(above=above, after=arguments.after if depth == 1 else None)
    request.with_rates = arguments.rates
    for node in management.pages(link, "ListTopics", request, pb.ListTopicsReply, arguments.limit, "topics"):
        yield json.dumps(facts(node)) if arguments.json else _tree_line(node, depth)
        if node.has_children and depth < arguments.depth:
            yield from _tree(link, arguments, f"{node.path}/", depth + 1)


def _tree_line(node: "pb.TopicNode", depth: int) -> str:
    """Format a name: a line for a topic, and a line that ends with a slash for a name with levels below it."""
    start = _INDENT * (depth - 1) + printable(node.name)
    rate = f", {node.rate:.1f}/s" if node.HasField("rate") else ""
    last = f", the last {format_time(node.last_ms)}" if node.last_ms else ""
    lines = [f"{start} ({node.messages} messages{rate}{last})"] if node.is_topic else []
    if node.has_children:
        lines.append(f"{start}/")
    return "\n".join(lines)


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    topic = management.ask(arguments, "GetTopic", pb.GetTopicRequest(topic=arguments.topic), pb.Topic)
    count = topic.end - topic.begin
    size = f"{count} messages, about {format_size(topic.bytes)}, {topic.rate:.1f}/s in the last minute"
    lines = [f"{printable(topic.topic)}: {size}, offsets [{topic.begin}, {topic.end})"]
    age = f"for {topic.retained_s:.0f} s" if topic.retained_s else "without a limit of age"
    lines.append(f"  messages of {printable(topic.parent)} are kept {age}")
    lines += (f"  partition {each.partition}: [{each.begin}, {each.end})" for each in topic.partitions)
    if topic.retained_from_ms:
        lines.append(f"  messages before {format_time(topic.retained_from_ms)} are not delivered any more")
    row = facts(topic)
    for name in ("last", "retained"):
        if topic.HasField(name):
            lines.append(f"{name}: {message_lines(getattr(topic, name))}")
            row[name] = message_facts(getattr(topic, name))
    print_result(arguments, row, "\n".join(lines))
    return 0


def _browse(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    since = None if arguments.since is None else milliseconds(arguments.since)
    request: pb.BrowseTopicRequest | pb.BrowsePartitionRequest
    if arguments.partition is None:
        name, request = "BrowseTopic", pb.BrowseTopicRequest(topic=arguments.topic)
    else:
        name = "BrowsePartition"
        request = pb.BrowsePartitionRequest(parent=arguments.topic, partition=arguments.partition)
    if arguments.offset is not None:
        request.offset = arguments.offset
    elif since is not None:
        request.time_ms = since
    left = arguments.limit
    with management.connect(arguments) as link:
        while left:
            request.limit = min(left, 1000)
            reply = link.call(name, request, pb.BrowseReply)
            for message in reply.messages:
                print_result(arguments, message_facts(message), message_line(message))
            left -= len(reply.messages)
            if reply.next >= reply.end or (request.HasField("offset") and reply.next <= request.offset):
                break
            request.offset = reply.next
    return 0


def _publish(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.PublishMessageRequest(topic=arguments.topic, qos=arguments.qos, retain=arguments.retain)
    request.content_type = arguments.content_type
    for name, value in arguments.property:
        request.properties.add(name=name, value=value)
    if arguments.payload is None:
        request.payload = sys.stdin.buffer.read()
    else:
        request.text = arguments.payload
    position = management.ask(arguments, "PublishMessage", request, pb.PublishMessageReply).position
    print_result(arguments, {"position": position}, f"stored at position {position}")
    return 0
