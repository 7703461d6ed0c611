"""Administration requests about a data folder, which is opened directly when no node runs on it."""

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.console.command import CommandError, add_data_dir, add_json

if TYPE_CHECKING:
    from sluice.node.admin_socket import NodeLink


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_dir(parser)
    add_json(parser)


def find(data: Path) -> "NodeLink | None":
    """Connect to the node of a data folder. Return None when no node runs. Raises `CommandError`."""
    from sluice.node.admin_socket import NodeLink  # noqa: PLC0415
    from store.data_folder import is_data_folder  # noqa: PLC0415

    node = NodeLink.find(data)
    if node is None and not is_data_folder(data):
        raise CommandError(f"there is no data folder at {data}: start the node once, or give --data-dir")
    return node


def ask_node(data: Path, path: str, body: dict[str, Any], is_long: bool = False) -> dict[str, Any]:
    """Return the answer of the node, which must be running. is_long: it may take minutes. Raises `CommandError`."""
    from sluice.node.admin_socket import LONG_TIMEOUT, TIMEOUT  # noqa: PLC0415

    node = find(data)
    if node is None:
        raise CommandError(f"no node runs on {data}: use `sluice show` to read the folder")
    try:
        return node.ask(path, body, LONG_TIMEOUT if is_long else TIMEOUT)
    finally:
        node.close()


def ask(data: Path, question: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a query of `gateway.admin.users_and_rules`. Raises `CommandError`, and `WrongRequest` and
    `StoreError` when no node runs."""
    from sluice.node.admin_socket import LONG_TIMEOUT  # noqa: PLC0415

    node = find(data)
    if node is None:
        return asyncio.run(_ask_folder(data, question, body))
    try:
        return node.ask(f"/access/{question}", body, LONG_TIMEOUT)
    finally:
        node.close()


def pages(data: Path, question: str, rows: str) -> Iterator[dict[str, Any]]:
    """Yield all rows of a list, page by page."""
    after: str | None = None
    while True:
        page = ask(data, question, {"after": after})
        yield from page[rows]
        after = page["after"]
        if after is None:
            return


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
