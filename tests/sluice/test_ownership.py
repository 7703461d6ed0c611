"""Commands that root runs on a node's folder leave nothing there that the node cannot write."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from sluice.node.http_link import HttpLink, ManagementError
from store.config import StoreConfig
from store.engine import Engine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

OWNER = 65_534  # who has no rights but his own


@pytest.fixture
async def data() -> "Iterator[Path]":  # type: ignore[misc]
    """The folder of a stopped node of another user, where that user can reach it."""
    above = Path(mkdtemp())
    above.chmod(0o755)  # noqa: ASYNC240  before anything runs
    engine = await Engine.open(above / "data", StoreConfig())
    await engine.close()
    for path in (above / "data", *(above / "data").rglob("*")):
        os.chown(path, OWNER, OWNER)
    yield above / "data"
    shutil.rmtree(above)


@pytest.mark.parametrize(
    "words", [("user", "add", "alice"), ("acl", "set", "--everybody", "allow both #"), ("user", "list")]
)
def test_files_that_root_makes_belong_to_the_node(data: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "sluice", *words, "--data-dir", str(data)]
    ended = subprocess.run(command, input=b"wonderland\n", capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == b""
    assert {path.stat().st_uid for path in (data, *data.rglob("*"))} == {OWNER}


def test_another_user_is_asked_to_run_the_command_as_the_nodes_user(data: Path) -> None:
    data.chmod(0o750)
    os.seteuid(1)
    try:
        with pytest.raises(ManagementError, match="belongs to another user: run this as the node's user, or as root"):
            HttpLink.find(data)
    finally:
        os.seteuid(0)
