"""The example of connectors, installed as a distribution is: modules, and a folder that says what they bring."""

import configparser
import sqlite3
import tomllib
from pathlib import Path

import pytest

from connect.plugins import CONNECTORS
from tests.connect.runtime.conftest import Connect, connect, node
from tests.waiting import until

__all__ = ["connect", "node"]  # the fixtures

EXAMPLE = Path(__file__).parents[2] / "examples" / "connector"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    about = tmp_path / "sluice_rows-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = configparser.ConfigParser(delimiters="=")
    points.read_dict(project["entry-points"])
    with (about / "entry_points.txt").open("w") as file:
        points.write(file)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
async def test_rows_become_messages_and_messages_rows(connect: Connect) -> None:
    assert {"rows-sink", "rows-source"} <= set(CONNECTORS.names())
    file = connect.folder / "machines.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE jobs (machine TEXT, pieces INTEGER)")
        database.executemany("INSERT INTO jobs VALUES (?, ?)", [("press-1", 10), ("press-2", 20)])
    source = {"connector.class": "rows-source", "file": str(file), "table": "jobs", "topic": "jobs/new"}
    await connect.set("jobs", source)
    await connect.set("all", {"connector.class": "rows-sink", "file": str(file), "topics": "jobs/#"})

    def rows() -> list[tuple[str, str]]:
        with sqlite3.connect(file) as database:
            tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'messages'").fetchall()
            return database.execute("SELECT topic, value FROM messages ORDER BY position").fetchall() if tables else []

    async with connect.worker():
        await until(lambda: len(rows()) == 2)
        with sqlite3.connect(file) as database:
            database.execute("INSERT INTO jobs VALUES ('press-3', 30)")
        await until(lambda: len(rows()) == 3)
    assert rows()[2] == ("jobs/new", '{"rowid": 3, "machine": "press-3", "pieces": 30}')
