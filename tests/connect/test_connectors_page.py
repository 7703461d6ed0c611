"""docs/connectors.md: its examples are configurations, and it has every connector with all settings."""

import re
from pathlib import Path

import pytest

from connect.configuration import problems_of
from connect.plugins import CONNECTORS

PAGE = (Path(__file__).parents[2] / "docs/connectors.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"```properties\n(.*?)```", PAGE, re.S) if "connector.class=" in block]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_examples_are_configurations(block: str) -> None:
    lines = [line for line in block.splitlines() if line and not line.startswith("#")]
    config = {name: text for name, _, text in (line.partition("=") for line in lines)}
    assert problems_of({"name": "example", **config}) == {}


@pytest.mark.parametrize("name", CONNECTORS.names())
def test_every_setting_is_described(name: str) -> None:
    assert re.search(rf"^\| .*`{name}`", PAGE, re.MULTILINE)
    assert [each.name for each in CONNECTORS.find(name).settings if f"`{each.name}`" not in PAGE] == []
