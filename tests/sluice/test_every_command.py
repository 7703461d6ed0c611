"""Every command and every action: an example in its help that parses, and one line instead of a stack trace when the
node is stopped, is not there, or does not answer."""

import argparse
import asyncio
import io
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cli import main, parser
from store.config import StoreConfig
from store.engine import Engine

# What operators look for. A name that goes breaks their scripts.
NAMES = {
    *("topic", "group", "dlq", "trace", "client", "session", "service", "ban", "txn", "timer"),
    *("user", "role", "acl", "audit", "config", "top", "doctor"),
}


def actions_of(found: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, and those below it."""
    yield found
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from actions_of(each)


PARSER = parser()
EVERY = list(actions_of(PARSER))[1:]
RUNNABLE = [each for each in EVERY if each.get_default("run") is not None]


def asks_a_node(found: argparse.ArgumentParser) -> bool:
    """Whether it asks the node of a folder over the management surface."""
    options = {option for action in found._actions for option in action.option_strings}
    return {"--data-dir", "--ca-file"} <= options


ASKING = [each for each in RUNNABLE if asks_a_node(each)]


def is_about_access(found: argparse.ArgumentParser) -> bool:
    """Whether it works on the folder of a stopped node, too."""
    return name_of(found).split()[0] in ("user", "acl", "role")


def name_of(found: argparse.ArgumentParser) -> str:
    return found.prog.removeprefix("sluice ")


def example_of(found: argparse.ArgumentParser) -> list[str]:
    """The words of the example behind `sluice`, without a redirection of its output."""
    words = shlex.split(found.format_help().rpartition("example:\n")[2].strip())
    assert words[0] == "sluice"
    return words[1 : words.index(">") if ">" in words else None]


@pytest.mark.parametrize("found", EVERY, ids=name_of)
def test_help_has_an_example_of_the_command_that_parses(found: argparse.ArgumentParser) -> None:
    words = example_of(found)
    rest = iter(words)
    assert all(word in rest for word in name_of(found).split())  # in this order
    assert callable(PARSER.parse_args(words).run)


def test_operators_find_the_names_that_they_expect() -> None:
    assert {name_of(each) for each in EVERY} >= NAMES


def words_of(found: argparse.ArgumentParser, *where: str) -> list[str]:
    """The example of a command, for another node."""
    words, kept = iter(example_of(found)), list[str]()
    for word in words:
        if word in ("--data-dir", "--host", "--username", "--password-file"):
            next(words)
        else:
            kept.append(word)
    return [*kept, *where]


def run(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Exit code and the lines of standard error."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a password\n")))
    monkeypatch.setattr("sluice.cli.parser", lambda: PARSER)  # to make one takes longer than all the rest
    monkeypatch.setenv("MQTT_PASSWORD", "a password")
    code = main(words)
    return code, capsys.readouterr().err.splitlines()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a node that is stopped."""
    folder = tmp_path_factory.mktemp("stopped") / "data"

    async def make() -> None:
        await (await Engine.open(folder, StoreConfig(segment_size=4 << 20))).close()

    asyncio.run(make())
    return folder


@pytest.mark.parametrize("found", ASKING, ids=name_of)
def test_without_a_folder_the_error_is_one_line(
    found: argparse.ArgumentParser,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, lines = run(words_of(found, "--data-dir", str(tmp_path / "none")), capsys, monkeypatch)
    assert code == 1
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{found.prog}: ")


@pytest.mark.parametrize("found", [each for each in ASKING if not is_about_access(each)], ids=name_of)
def test_a_stopped_node_is_one_line(
    found: argparse.ArgumentParser,
    stopped: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reading.json").write_text("{}", encoding="utf-8")  # which examples name
    code, lines = run(words_of(found, "--data-dir", str(stopped)), capsys, monkeypatch)
    assert code == 1
    assert lines == [f"{found.prog}: no node runs on {stopped}: use `sluice show` to read the folder"]


@pytest.mark.parametrize("found", ASKING, ids=name_of)
def test_a_node_that_cannot_be_reached_is_one_line(
    found: argparse.ArgumentParser,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--host", "http://127.0.0.1:1", "--username", "alice")
    code, lines = run(words_of(found, *where), capsys, monkeypatch)
    assert code == 1
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{found.prog}: ")
