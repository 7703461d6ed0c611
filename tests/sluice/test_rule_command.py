"""`sluice rule set`: the definition that a file and the flags make. The guide in docs/events.md runs the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import parser
from sluice.commands.messages.rule import _definition
from sluice.console.command import CommandError, UsageError


def made(*flags: str) -> dict[str, Any]:
    return _definition(parser().parse_args(["rule", "set", "r", *flags]))


def test_flags_make_a_definition() -> None:
    assert made("--sql", "S", "--to-topic", "out", "--qos", "2") == {"sql": "S", "topic": {"topic": "out", "qos": 2}}
    assert made(
        "--topics", "a", "b/#", "--pattern", "{}", "--constant", "", "--to-url", "https://x", "--batch", "9"
    ) == {
        "topics": ["a", "b/#"],
        "pattern": "{}",
        "transform": {"constant": ""},
        "webhook": {"url": "https://x", "batch": 9},
    }
    enrich = made("--topics", "a", "--enrich", "dev=devices/x", "--enrich", "at=b/{{ a == b }}", "--to-topic", "o")[
        "enrich"
    ]
    assert enrich == {"dev": "devices/x", "at": "b/{{ a == b }}"}
    found = made("--to-url", "https://x", "--header", "X-Site: north:1", "--secret", "s")
    assert found["webhook"] == {"url": "https://x", "secret": "s", "headers": {"X-Site": "north:1"}}


def test_flags_replace_parts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    shown = {
        "name": "r",
        "definition": {
            "topics": ["a"],
            "pattern": {"data": {"x": [1]}},
            "transform": {"template": "t", "content_type": "a/b"},
            "webhook": {"url": "https://x", "batch": 5},
        },
    }
    file.write_text(json.dumps(shown), encoding="utf-8")
    found = made("--file", str(file), "--rate", "3", "--content-type", "c/d")
    assert json.loads(found["pattern"]) == {"data": {"x": [1]}}
    assert found["transform"] == {"template": "t", "content_type": "c/d"}
    assert found["webhook"] == {"url": "https://x", "batch": 5, "rate": 3}
    found = made("--file", str(file), "--to-topic", "out", "--path", "$.x")
    assert (found["topic"], found["transform"]) == ({"topic": "out"}, {"path": "$.x"})
    assert "webhook" not in found


def test_what_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    file.write_text("[", encoding="utf-8")
    for flags, error in (
        (["--file", str(file)], CommandError),
        (["--file", str(tmp_path / "none")], CommandError),
        (["--to-topic", "a", "--batch", "3"], UsageError),
        (["--to-url", "https://x", "--header", "no header"], UsageError),
        (["--topics", "a", "--enrich", "devices/x"], UsageError),
    ):
        with pytest.raises(error):
            made(*flags)
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match="a JSON object"):
        made("--file", str(file))
