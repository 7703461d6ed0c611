"""The command line: help with an example everywhere, and right exit codes."""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cli import main, parser
from sluice.kernel import compiled_modules
from store.data_folder import META


def subcommands() -> dict[str, argparse.ArgumentParser]:
    action = next(each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(action.choices)


@pytest.mark.parametrize("name", subcommands())
def test_every_command_shows_an_example_that_parses(name: str) -> None:
    text = subcommands()[name].format_help()
    example = text.rpartition("example:\n")[2].strip()
    assert example.startswith(f"sluice {name}")
    words = shlex.split(example)[1:]
    assert callable(parser().parse_args(words).run)


def test_a_listener_can_be_left_out() -> None:
    words = ["serve", "--mqtt-port", "0", "--ws-port", "-1", "--grpc-port", "-1", "--http-port", "-1"]
    found = parser().parse_args(words)
    assert (found.mqtt_port, found.ws_port, found.grpc_port, found.http_port) == (0, -1, -1, -1)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in subcommands())


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["pub"],
        ["version", "--fast"],
        ["sub", "-t", "a", "--count", "0"],
        ["serve", "--mqtt-port", "70000"],
        ["serve", "--ws-port", "-2"],
        ["serve", "--grpc-port", "-2"],
        ["sub", "-t", "a", "--timeout", "-1"],
        ["sub", "-t", "a", "--timeout", "nan"],
        ["sub", "-t", "a", "--id", "x", "--session", "4294967296"],
        ["sub", "-t", "a", "--id", "x", "--session", "-1"],
        ["pub", "-t", "a", "-m", "x", "--keep-alive", "65536"],
        ["pub", "-t", "a", "-m", "x", "--id", "x" * 65_536],
        ["demo", "--readings", "10"],
    ],
)
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("pyspark", "demo", "demo"),
        ("rich", "demo", "demo"),
        ("pyarrow", "history show /nowhere", "history"),
        ("deltalake", "history export /nowhere", "history"),
        ("pyspark", "sql SELECT", "spark"),
        ("pyspark", "stream windows --parent a", "spark"),
        ("aiohttp", "serve --data-dir {folder}", "node"),
        ("rocksdict", "serve --data-dir {folder}", "node"),
        ("rocksdict", "user list --data-dir {folder}", "node"),
        ("rocksdict", "show --data-dir {folder} topics", "node"),
        ("orjson", "backup --data-dir {folder} {folder}/backup", "node"),
        ("paho", "pub -t a -m b", "node"),
        ("paho", "sub -t a", "node"),
    ],
)
@pytest.mark.slow
def test_a_missing_extra_is_one_line_and_2(missing: str, words: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / META).touch()
    code = f"import sys; sys.modules[{missing!r}] = None; from sluice.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *words.format(folder=tmp_path).split()]
    told = subprocess.run(command, capture_output=True, check=False, text=True)
    line = f"sluice {words.partition(' ')[0]}: {missing} is not installed: pip install 'sluicemq[{extra}]'\n"
    assert (told.returncode, told.stdout, told.stderr) == (2, "", line)


def test_help_and_the_sdks_commands_need_no_extra() -> None:
    hidden = ["aiohttp", "amqtt", "msgspec", "orjson", "paho", "pyarrow", "pyspark", "rich", "rocksdict", "uvloop"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden})); import cloud_sdk.blocking; "
        "from sluice.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run([*command, "version"], check=False).returncode == 0
    told = subprocess.run([*command, "topics", "--port", "1"], capture_output=True, check=False, text=True)
    assert told.returncode == 1
    assert told.stderr.startswith("sluice topics: ")


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["compiled"] == compiled_modules()


def test_version_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert ("compiled" in capsys.readouterr().out) == bool(compiled_modules())


def test_a_process_that_a_test_starts_runs_this_tree() -> None:
    """Otherwise the tests of a pure copy would start the installed nodes, whose kernel is compiled."""
    code = "import gateway, sluice, store; print(*(each.__path__[0] for each in (gateway, sluice, store)), sep='\\n')"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=Path(__file__).parent, text=True
    )
    root = Path(__file__).parents[2]
    assert told.stdout.splitlines() == [str(root / name) for name in ("gateway", "sluice", "store")]


def test_serve_names_a_setting_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text("[mqtt]\nprot = 1\n", encoding="utf-8")
    assert main(["serve", "--config", str(config)]) == 2
    assert "mqtt.prot" in capsys.readouterr().err
