"""Completion in shells: the scripts are written from the parser, and the shells that are there accept them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.cli import main, parser
from sluice.commands.completion import _commands


def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = tmp_path / f"completion.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def test_every_command_is_known() -> None:
    paths = {each.path for each in _commands(parser(), "")}
    assert {"", "serve", "config", "config check", "cluster drain", "doctor"} <= paths
    assert all(parser().parse_known_args(["config", "reference", "--format", each]) for each in ("toml", "markdown"))


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("conf", "config"),
        ("config ch", "check"),
        ("config --json che", "check"),
        ("config reference --f", "--format"),
        ("config reference --format ", "toml markdown"),
        ("serve --roles ", "both store gateway"),
        ("completion ", "bash zsh fish -h --help"),
        ("config check sluice.t", ""),  # the shell completes files then
    ],
)
def test_bash(words: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("bash", tmp_path, capsys)
    parts = ["sluice", *words.split(" ")]
    ask = f'source {path}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; echo "${{COMPREPLY[*]}}"'
    told = subprocess.run(["bash", "-c", ask, "bash", *parts], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == completed
    assert told.stderr == ""


def test_zsh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("zsh", tmp_path, capsys)
    if (zsh := shutil.which("zsh")) is None:
        pytest.skip("zsh is not installed")
    told = subprocess.run(
        [zsh, "-fc", f"source {path}; echo $_comps[sluice]"], capture_output=True, text=True, check=True
    )
    assert "_sluice" in told.stdout


def test_fish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("fish", tmp_path, capsys)
    if (fish := shutil.which("fish")) is None:
        pytest.skip("fish is not installed")
    ask = f'source {path}; complete -C "sluice config ch"; complete -C "sluice config reference --format "'
    told = subprocess.run([fish, "--no-config", "-c", ask], capture_output=True, text=True, check=True)
    assert [line.partition("\t")[0] for line in told.stdout.splitlines()] == ["check", "markdown", "toml"]
