"""`sluice topics`: browse the topics of a node, a level at a time or whole."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, declare, positive
from sluice.console.records import printable
from sluice.node import grpc_client

if TYPE_CHECKING:
    from cloud_sdk.blocking import Client
    from cloud_sdk.message import Child

EXAMPLE: Final = "sluice topics home --depth 2"
_PAGE: Final = 1000
_INDENT: Final = "  "


def add(subparsers: Subparsers) -> None:
    parser = declare(subparsers, "topics", "browse the topics that were ever published to", EXAMPLE, run)
    parser.add_argument("above", nargs="?", default="", metavar="LEVELS", help="show what is below, such as home/bath")
    parser.add_argument("--depth", type=positive, default=1, metavar="N", help="show so many levels (default: 1)")
    parser.add_argument("--list", action="store_true", help="show whole topics instead, of all levels below")
    parser.add_argument("--after", metavar="NAME", help="go on behind this one, of the first level that is shown")
    parser.add_argument("--limit", type=positive, default=1000, metavar="N", help="names to show (default: 1000)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    grpc_client.add_arguments(parser)


def run(arguments: Arguments) -> int:
    from cloud_sdk.errors import SluiceError  # noqa: PLC0415

    above = arguments.above
    if above and not above.endswith("/"):
        above += "/"
    try:
        with grpc_client.connect(arguments) as client:
            walk = _topics if arguments.list else _tree
            shown = walk(client, arguments, above)
            for text in islice(shown, arguments.limit):
                print(text)
            if next(shown, None) is not None:
                print("sluice topics: there are more: go on with --after, or raise --limit", file=sys.stderr)
    except SluiceError as error:
        print(f"sluice topics: {error}", file=sys.stderr)
        return 1
    return 0


def _topics(client: "Client", arguments: Arguments, above: str) -> Iterator[str]:
    """A line for each topic below."""
    after = arguments.after
    more = True
    while more:
        page = client.topics(above, after=after, limit=_PAGE)
        for topic in page:
            yield json.dumps({"topic": topic}) if arguments.json else printable(topic)
        after = page[-1] if page else None
        more = len(page) == _PAGE


def _tree(client: "Client", arguments: Arguments, above: str, depth: int = 1) -> Iterator[str]:
    """The lines of each name below, and of what is below that."""
    after = arguments.after if depth == 1 else None
    more = True
    while more:
        page = client.children(above, after=after, limit=_PAGE)
        for child in page:
            yield _told(child, above) if arguments.json else _drawn(child, depth)
            if child.has_children and depth < arguments.depth:
                yield from _tree(client, arguments, f"{above}{child.name}/", depth + 1)
        after = page[-1].name if page else None
        more = len(page) == _PAGE


def _told(child: "Child", above: str) -> str:
    name = above + child.name
    return json.dumps({"name": name, "is_topic": child.is_topic, "has_children": child.has_children})


def _drawn(child: "Child", depth: int) -> str:
    """A topic is a line with its name; a name with others below it, one with a slash behind."""
    start = _INDENT * (depth - 1) + printable(child.name)
    lines = [start] if child.is_topic else []
    if child.has_children:
        lines.append(f"{start}/")
    return "\n".join(lines)
