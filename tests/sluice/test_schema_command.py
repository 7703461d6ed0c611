"""`sluice schema` beyond its guide: exit codes, other kinds, and what cannot be read. docs/schemas.md runs the rest."""

import asyncio
import json
from pathlib import Path

import pytest

from gateway.node.node import Node
from sluice.cli import main
from tests.gateway.conftest import make_node, node  # noqa: F401  fixtures
from tests.gateway.management.world import store_messages
from tests.gateway.registry.schemas import MORE, NUMBER


async def run(node: Node, *arguments: str) -> int:  # noqa: F811
    return await asyncio.to_thread(main, ["schema", *arguments, "--data-dir", str(node.config.data_dir)])


async def test_exit_codes_and_output(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    (tmp_path / "a.json").write_text(NUMBER)
    (tmp_path / "b.json").write_text(MORE)
    (tmp_path / "c.avsc").write_text('"double"')
    (tmp_path / "d.proto").write_text('syntax = "proto3"; message R { double t = 1; }')
    (tmp_path / "e.txt").write_text("true")
    (tmp_path / "f.json").write_bytes(b"\xff")
    (tmp_path / "payload").write_bytes(b"\0" * 8)
    assert await run(node, "register", "r", str(tmp_path / "b.json")) == 0
    assert await run(node, "check", "r", str(tmp_path / "a.json")) == 1
    assert await run(node, "register", "r", str(tmp_path / "a.json")) == 1
    assert await run(node, "compatibility", "FORWARD", "--subject", "r") == 0
    assert await run(node, "register", "r", str(tmp_path / "a.json")) == 0
    assert await run(node, "check", "r", str(tmp_path / "a.json")) == 0
    assert await run(node, "compatibility", "default") == 0
    assert await run(node, "register", "avro", str(tmp_path / "c.avsc")) == 0
    assert await run(node, "register", "proto", str(tmp_path / "d.proto")) == 0
    assert await run(node, "register", "text", str(tmp_path / "e.txt"), "--kind", "JSON") == 0
    assert await run(node, "validate", "avro", f"@{tmp_path / 'payload'}") == 0
    assert await run(node, "validate", "r", "{}", "--version", "1") == 1
    assert await run(node, "get", "r", "--version", "1") == 0
    assert await run(node, "bind", "a/b", "r", "--mode", "mark", "--version", "2") == 0
    await store_messages(node, (b"a/b", b"{}"), (b"a/b", b'{"t": 1}'))
    capsys.readouterr()
    assert await run(node, "preview", "a/b", "r") == 1
    assert "1 of the newest 2 messages do not match" in capsys.readouterr().out
    assert await run(node, "list", "--json") == 0
    names = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert names == ["avro", "proto", "r", "text"]
    assert await run(node, "bindings") == 0
    assert capsys.readouterr().out == "a/b → r version 2: mark\n"
    for arguments, why in (
        (("get", "r", "--version", "9"), "has no version 9"),
        (("register", "r", str(tmp_path / "e.txt")), "say --kind"),
        (("register", "r", str(tmp_path / "f.json")), "is not UTF-8"),
        (("register", "r", str(tmp_path / "none.json")), "cannot read"),
        (("delete", "r", "--version", "2"), "delete that binding first"),
        (("infer", "#"), "is not a wildcard"),
    ):
        assert await run(node, *arguments) == 1
        assert why in capsys.readouterr().err
