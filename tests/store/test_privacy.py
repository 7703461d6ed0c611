"""Permissions of a data folder, which has credentials and messages."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.engine import Engine

pytestmark = pytest.mark.any_store


@pytest.fixture(autouse=True)
def open_handed() -> Iterator[None]:
    """A umask that takes from nobody but what most systems take."""
    before = os.umask(0o022)
    yield
    os.umask(before)


async def test_folders_are_their_users_and_groups_alone(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    await (await Engine.open(data, StoreConfig(segment_size=1 << 16, partitions=1))).close()
    folders = [data, *(path for path in data.rglob("*") if path.is_dir())]
    assert {data / "log", data / "views"} <= set(folders)
    assert {path: stat.S_IMODE(path.stat().st_mode) & 0o027 for path in folders} == dict.fromkeys(folders, 0)
    assert stat.S_IMODE(data.parent.stat().st_mode) == 0o755  # what others may have their things in
