"""docs/connect.md: its first connector runs as it is written, and its examples of settings are valid."""

from pathlib import Path

import pytest

from connect.configuration import problems_of
from tests.system.blocks import Shell, blocks
from tests.system.conftest import NodeProcess
from tests.system.tools import program

ROOT = Path(__file__).parents[2]
ALL = blocks(ROOT / "docs/connect.md", ROOT)
EXAMPLES = [block for block in ALL if block.text.startswith("connector.class=")]


@pytest.mark.slow
def test_the_first_connector_runs(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    programs = {"sub": program("mosquitto_sub"), "pub": program("mosquitto_pub")}
    shell = Shell(tmp_path, {"mqtt": node.mqtt_port, "grpc": node.grpc_port}, programs)
    first = [block for block in ALL if block.language == "console" and block.is_run][:3]
    assert [block.is_background for block in first] == [False, True, False]
    try:
        node.start()
        for block in first:
            shell.run(block)
    finally:
        shell.close()
        if node.process is not None:
            node.kill()


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.place)
def test_an_example_of_settings_is_valid(block: object) -> None:
    lines = [line.partition("=") for line in getattr(block, "text", "").splitlines() if line and line[0] != "#"]
    assert problems_of({"name": "example", **{name: value for name, _, value in lines}}) == {}
