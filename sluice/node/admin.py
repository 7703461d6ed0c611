"""What commands share that ask the node of a data folder: their flags, how their errors are told, and the asking, also
of the folder itself when the node is down."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.console.command import Arguments

if TYPE_CHECKING:
    from sluice.node.admin_socket import NodeLink


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="the node's (default: data)")
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")


def run(arguments: Arguments) -> int:
    """Run the action, its errors told in a line."""
    from gateway.admin.users_and_rules import WrongRequest  # noqa: PLC0415
    from sluice.node.admin_socket import NodeError  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415

    try:
        return int(arguments.action(arguments))
    except BrokenPipeError:  # the whole command's matter
        raise
    except (WrongRequest, NodeError, StoreError, OSError, ValueError) as error:
        print(f"{arguments.name_of_command}: {error}", file=sys.stderr)
        return 1


def find(data: Path) -> "NodeLink | None":
    """The node of a data folder, None when it is down. Raises what `run` tells."""
    from sluice.node.admin_socket import NodeLink  # noqa: PLC0415
    from store.data_folder import is_data_folder  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415

    node = NodeLink.find(data)
    if node is None and not is_data_folder(data):
        raise StoreError(f"there is no data folder at {data}: start the node once, or say --data-dir")
    return node


def ask_node(data: Path, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the node answers, which has to run. Raises what `run` tells."""
    from sluice.node.admin_socket import NodeError  # noqa: PLC0415

    node = find(data)
    if node is None:
        raise NodeError(f"no node runs on {data}: sluice show tells what a folder holds")
    try:
        return node.ask(path, body)
    finally:
        node.close()


def ask(data: Path, question: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the node, or its folder, answers (see `gateway.admin.users_and_rules`). Raises what `run` tells."""
    from sluice.node.admin_socket import LONG_TIMEOUT  # noqa: PLC0415

    node = find(data)
    if node is None:
        return asyncio.run(_ask_folder(data, question, body))
    try:
        return node.ask(f"/access/{question}", body, LONG_TIMEOUT)
    finally:
        node.close()


def pages(data: Path, question: str, rows: str) -> Iterator[dict[str, Any]]:
    """All rows of a list."""
    after: str | None = None
    while True:
        page = ask(data, question, {"after": after})
        yield from page[rows]
        after = page["after"]
        if after is None:
            return


def tell(arguments: Arguments, facts: dict[str, Any], text: str) -> None:
    print(json.dumps(facts) if arguments.json else text)


async def _ask_folder(data: Path, question: str, body: dict[str, Any]) -> dict[str, Any]:
    from gateway.admin.users_and_rules import Administration  # noqa: PLC0415
    from sluice.node.ownership import left_to_owner  # noqa: PLC0415
    from store.config import StoreConfig  # noqa: PLC0415
    from store.data_folder import read_meta  # noqa: PLC0415
    from store.engine import Engine  # noqa: PLC0415

    meta = read_meta(data)
    with left_to_owner(data):
        engine = await Engine.open(data, StoreConfig(partitions=meta.partitions, segment_size=meta.segment_size))
        try:
            return await Administration(engine).answer(question, body)
        finally:
            await engine.close()
