"""`sluice topics`: browse the topics of a node, level by level or as a list."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, add_json, add_limit, declare, positive
from sluice.console.records import printable
from sluice.node import grpc_client

if TYPE_CHECKING:
    from cloud_sdk.blocking import Client
    from cloud_sdk.message import Child

EXAMPLE: Final = "sluice topics home --depth 2"
_PAGE: Final = 1000
_INDENT: Final = "  "


def add(subparsers: Subparsers) -> None:
    parser = declare(subparsers, "topics", "browse the topics that have had messages", EXAMPLE, run)
    text = "show the topics below these levels, such as home/bath"
    parser.add_argument("above", nargs="?", default="", metavar="LEVELS", help=text)
    parser.add_argument("--depth", type=positive, default=1, metavar="N", help="show N levels (default: 1)")
    parser.add_argument("--list", action="store_true", help="list whole topics of all levels instead")
    parser.add_argument("--after", metavar="NAME", help="begin after this name of the first level that is shown")
    add_limit(parser, "names", 1000)
    add_json(parser)
    grpc_client.add_arguments(parser)


def run(arguments: Arguments) -> int:
    above = arguments.above
    if above and not above.endswith("/"):
        above += "/"
    with grpc_client.connect(arguments) as client:
        shown = (_topics if arguments.list else _tree)(client, arguments, above)
        for text in islice(shown, arguments.limit):
            print(text)
        if next(shown, None) is not None:
            print("sluice topics: there are more names: continue with --after, or raise --limit", file=sys.stderr)
    return 0


def _topics(client: "Client", arguments: Arguments, above: str) -> Iterator[str]:
    """Yield a line for each topic below `above`."""
    after = arguments.after
    more = True
    while more:
        page = client.topics(above, after=after, limit=_PAGE)
        for topic in page:
            yield json.dumps({"topic": topic}) if arguments.json else printable(topic)
        after = page[-1] if page else None
        more = len(page) == _PAGE


def _tree(client: "Client", arguments: Arguments, above: str, depth: int = 1) -> Iterator[str]:
    """Yield a line for each name below `above`, and those of the levels below it."""
    after = arguments.after if depth == 1 else None
    more = True
    while more:
        page = client.children(above, after=after, limit=_PAGE)
        for child in page:
            yield _json_line(child, above) if arguments.json else _tree_line(child, depth)
            if child.has_children and depth < arguments.depth:
                yield from _tree(client, arguments, f"{above}{child.name}/", depth + 1)
        after = page[-1].name if page else None
        more = len(page) == _PAGE


def _json_line(child: "Child", above: str) -> str:
    name = above + child.name
    return json.dumps({"name": name, "is_topic": child.is_topic, "has_children": child.has_children})


def _tree_line(child: "Child", depth: int) -> str:
    """Format a name: a line for a topic, and a line that ends with a slash for a name with levels below it."""
    start = _INDENT * (depth - 1) + printable(child.name)
    lines = [start] if child.is_topic else []
    if child.has_children:
        lines.append(f"{start}/")
    return "\n".join(lines)
