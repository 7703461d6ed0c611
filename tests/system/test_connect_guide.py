"""docs/connect.md: its first connector runs as it is written, and its rules for a worker suffice."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.blocks import Shell, blocks
from tests.system.conftest import NodeProcess
from tests.system.tools import program
from tests.waiting import block_until

ROOT = Path(__file__).parents[2]
ALL = blocks(ROOT / "docs/connect.md", ROOT)


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


@pytest.mark.slow
def test_the_rules_for_a_worker_suffice(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    rules = next(block.text for block in ALL if block.text.startswith("allow PUB,SUB topic:$kv/connect/lease/#"))
    config = tmp_path / "sluice.toml"
    config.write_text('[grpc]\nauth = ["password"]\n')
    node = make_node("node", "--config", str(config))
    node.start()
    data = ("--data-dir", str(node.data_dir))

    def sluice(*words: str, given: str = "") -> None:
        subprocess.run([sys.executable, "-m", "sluice", *words, *data], input=given, text=True, check=True)

    sluice("user", "add", "carrier", given="secret\n")
    sluice("acl", "set", "--user", "carrier", given=f"{rules}allow PUB,SUB topic:plant/#\n")
    lines = tmp_path / "in"
    lines.mkdir()
    (lines / "a.jsonl").write_text('{"n": 1}\n')
    out = tmp_path / "out"
    source = (f"directory={lines}", "connector.class=file-source", "topic=plant/in")
    sluice("connector", "set", "read", *source)
    sluice("connector", "set", "write", f"directory={out}", "connector.class=file-sink", "topics=plant/#")
    (tmp_path / "password").write_text("secret\n")
    login = ("--username", "carrier", "--password-file", str(tmp_path / "password"))
    where = ("--host", node.endpoint, "--allow-folder", str(tmp_path))
    worker = subprocess.Popen([sys.executable, "-m", "sluice", "connect", *where, *login])
    try:
        block_until(lambda: any('"n":1' in path.read_text() for path in out.glob("*")))
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
