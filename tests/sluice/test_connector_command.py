"""`sluice connector set`: the settings that a file and the words give. docs/connect.md runs the command."""

import json
from pathlib import Path

import pytest

from sluice.cli import parser
from sluice.commands.messages.connector import _settings
from sluice.console.command import CommandError, UsageError


def made(*words: str) -> dict[str, str]:
    return _settings(parser().parse_args(["connector", "set", "c", *words]))


def test_words_are_settings() -> None:
    assert made("a=b", "c=", "d=x=y") == {"a": "b", "c": "", "d": "x=y"}


def test_words_replace_settings_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "connector.json"
    file.write_text(json.dumps({"name": "c", "config": {"a": 1, "b": True, "c": None}}), encoding="utf-8")
    assert made("a=2", "--file", str(file)) == {"a": "2", "b": "true"}
    file.write_text(json.dumps({"a": "1"}), encoding="utf-8")
    assert made("--file", str(file)) == {"a": "1"}


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a setting"):
        made("topics")
    file = tmp_path / "connector.json"
    for text in ("{", "[]", '{"a": []}'):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(CommandError):
            made("--file", str(file))
    with pytest.raises(CommandError, match="cannot read"):
        made("--file", str(tmp_path / "none"))
