"""The code blocks of the guides run, or say why not (tests/system/blocks.py)."""

import ast
import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cloud_sdk
from gateway.config.config import load
from tests.system.blocks import Block, Shell, blocks
from tests.system.conftest import NodeProcess
from tests.system.tools import program
from tests.waiting import block_until, patience

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "console",
            "operations",
            "events",
            "schemas",
            "shadow",
            "home",
            "mqtt",
            "sdk",
            "streaming",
            "history",
        )
    ),
)
ALL = [block for page in (*PAGES, "docs/pipelines.md", "docs/rocketmq.md") for block in blocks(ROOT / page, ROOT)]
RUN = [block for block in ALL if block.is_run]


def of(*languages: str) -> list[Block]:
    return [block for block in RUN if block.language in languages]


def place(value: object) -> str | None:
    return value.place if isinstance(value, Block) else None


@pytest.mark.parametrize("block", ALL, ids=place)
def test_a_block_names_its_language(block: Block) -> None:
    assert block.language in ("sh", "console", "python", "sql", "toml", "json", "js", "text")
    assert not block.comment or block.comment.startswith(("not run: ", "run: ", "run in the background"))


@pytest.mark.parametrize("block", of("toml"), ids=place)
def test_a_configuration_is_read(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "sluice.toml"
    here = block.text.replace("/etc/sluice", str(tmp_path)).replace("/var/lib/sluice", str(tmp_path))
    path.write_text(here.replace("/run/sluice", str(tmp_path)), encoding="utf-8")
    for secret in re.findall(rf"\$\{{file:({re.escape(str(tmp_path))}/[^}}]+)\}}", here):
        Path(secret).write_text("secret", encoding="utf-8")
    assert load(path, environ={}) != load(environ={})


@pytest.mark.parametrize("block", of("json"), ids=place)
def test_json_is_read(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", of("python"), ids=place)
def test_python_is_read(block: Block) -> None:
    compile(block.text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name is short enough for Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        yield Path(name)


async def fill(endpoint: str) -> None:
    """Publish what the pages say is there."""
    async with cloud_sdk.Client(endpoint, name="shop") as client:
        for topic in ("home/bath/hum", "home/bath/temp", "home/hall/temp", "office/lamp"):
            await client.send(topic, b"21.5")
        await client.send("orders/new", b"3 x 4711", keys=["order-17"])
        await client.send("sensors/attic/temperature", b"21.5")


def subscriptions(node: NodeProcess) -> int:
    """How many subscriptions the connected clients have."""
    command = [sys.executable, "-m", "sluice", "client", "list", "--json"]
    listed = subprocess.run([*command, "--data-dir", node.data_dir], capture_output=True, check=True, text=True)
    return sum(json.loads(line)["subscription_count"] for line in listed.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, folder: Path) -> None:
    found = [block for block in of("sh", "console") if block.page == page]
    if not found:
        pytest.skip("the page has no commands")
    node = NodeProcess(folder / "data")
    programs = {"sub": program("mosquitto_sub"), "pub": program("mosquitto_pub")}
    shell = Shell(folder, {"mqtt": node.mqtt_port, "grpc": node.grpc_port}, programs)
    try:
        node.start()
        if page != "README.md":
            asyncio.run(fill(node.endpoint))
        if page == "docs/operations.md":
            shell.run(Block(page, 0, "", "sh", "mosquitto_sub -V 5 -i panel -c -x 3600 -q 1 -t 'home/+/temp'\n"))
            shell.start("sluice sub --id meter-17 --session 3600 --qos 1 --topic 'meters/#'")
        for block in found:
            shell.run(block)
            if block.is_background:
                block_until(lambda: subscriptions(node))
        shell.finish_background()
    finally:
        shell.close()
        if node.process is not None:
            node.kill()


@pytest.mark.slow
@pytest.mark.parametrize("block", [each for each in of("python") if "spark" not in each.text], ids=place)
def test_python_runs(block: Block, make_node: Callable[..., NodeProcess]) -> None:
    node = make_node()
    node.start()
    names = {**{name: getattr(cloud_sdk, name) for name in cloud_sdk.__all__}, "password": "secret"}
    code = compile(
        block.text.replace("127.0.0.1:7070", node.endpoint), block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )

    async def run() -> None:
        async with patience():
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", [each for each in of("python") if "spark" in each.text], ids=place)
def test_python_with_spark_runs(block: Block, make_node: Callable[..., NodeProcess]) -> None:
    pytest.importorskip("pyspark")
    from streaming.session import spark_session

    node = make_node()
    node.start()
    asyncio.run(fill(node.endpoint))
    exec(block.text.replace("127.0.0.1:7070", node.endpoint), {"spark": spark_session("blocks"), "os": os})
