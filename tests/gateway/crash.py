"""Simulate `kill -9` of a node in the test's own loop: copy its log into another folder."""

import shutil
from pathlib import Path

from gateway.node.node import Node
from tests.gateway.conftest import MakeNode


async def crashed(make_node: MakeNode, node: Node, name: str, **settings: object) -> Node:
    """A node that starts from what `node` has on disk at this moment. Its views are folded anew."""
    data = node.config.data_dir
    copy_log(data, data.parent / name)
    return await make_node(name, **settings)


def copy_log(data: Path, copy: Path) -> None:
    """Have a new folder with the log of another."""
    copy.mkdir()
    shutil.copytree(data / "log", copy / "log")
    shutil.copy(data / "store.json", copy)
