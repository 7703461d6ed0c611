"""What `sluice user` and `sluice acl` share: asking the node of a data folder, or the folder itself when it is down."""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.commands.command import Arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="the node's (default: data)")
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")


def run(arguments: Arguments) -> int:
    """Run the action, its errors told in a line."""
    from gateway.auth.administration import WrongRequest  # noqa: PLC0415
    from sluice.admin import NodeError  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415

    try:
        return int(arguments.action(arguments))
    except BrokenPipeError:  # the whole command's matter
        raise
    except (WrongRequest, NodeError, StoreError, OSError, ValueError) as error:
        print(f"{arguments.name_of_command}: {error}", file=sys.stderr)
        return 1


def ask(data: Path, question: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the node, or its folder, answers (see `gateway.auth.administration`). Raises what `run` tells."""
    from sluice.admin import NodeLink  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415
    from store.folder import is_data_folder  # noqa: PLC0415

    if not is_data_folder(data):
        raise StoreError(f"there is no data folder at {data}: start the node once, or say --data-dir")
    node = NodeLink.find(data)
    if node is None:
        return asyncio.run(_ask_folder(data, question, body))
    try:
        return node.ask(f"/access/{question}", body)
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
    from gateway.auth.administration import Administration  # noqa: PLC0415
    from store.config import StoreConfig  # noqa: PLC0415
    from store.engine import Engine  # noqa: PLC0415

    engine = await Engine.open(data, StoreConfig())
    try:
        return await Administration(engine).answer(question, body)
    finally:
        await engine.close()
