"""`sluice top`: what it shows of a node with traffic, and how the screen is drawn."""

import asyncio
from pathlib import Path

import pytest

from gateway.console.alarms import Alarm
from gateway.management.proto import management_pb2 as pb
from gateway.node.node import Node
from sluice.cli import main
from sluice.top.sample import Sample
from sluice.top.screen import quantile, screen
from tests.gateway.conftest import MakeNode, make_node
from tests.gateway.management.world import give_up, store_messages
from tests.gateway.people import set_rules, set_user
from tests.gateway.raw import RawClient

__all__ = ["make_node"]  # the fixture


def sample(seconds: float, **figures: int) -> Sample:
    about = pb.Figures(time_ms=int(1_700_000_000_000 + seconds * 1000), **figures)
    return Sample(about, pb.Store(log_bytes=5 << 20, free_bytes=1 << 30), [], None, [])


def test_rates_are_those_between_two_samples() -> None:
    before = sample(0, messages_received=100, bytes_received=1 << 20)
    now = sample(2, messages_received=300, bytes_received=3 << 20, connections=12_345)
    before.topics, now.topics = {"home": 10, "b\x1b[2J": 5}, {"home": 30, "b\x1b[2J": 5, "new": 7}
    now.groups = [pb.GroupSummary(group="billing", lag=1_234, dead_letters=2), pb.GroupSummary(group="idle")]
    before.acknowledged, now.acknowledged = {"billing": 4}, {"billing": 10}
    before.times = {"flush": {0.001: 100, 0.01: 100, float("inf"): 100}}
    now.times = {"flush": {0.001: 150, 0.01: 199, float("inf"): 200}, "handling in groups": {1.0: 0}}
    lines = screen(before, now, 1000, 200, is_colored=False).splitlines()
    fields = [line.split() for line in lines]
    assert ["in", "100.0", "messages/s", "1.0", "MiB/s"] in fields
    assert ["flush", "≤", "1", "ms", "≤", "10", "ms"] in fields
    assert "handling in groups" in next(line for line in lines if line.split()[-2:] == ["-", "-"])
    assert ["home", "10.0"] in fields
    assert ["new", "0.0"] in fields  # what it had before it was shown is no rate
    assert ["billing", "1,234", "2", "3.0"] in fields
    assert ["idle", "0", "0"] in fields
    assert "12,345" in next(line for line in lines if line.startswith("clients"))
    assert "\x1b" not in "".join(lines)
    assert lines[0].endswith("well")


def test_the_screen_fits_the_terminal() -> None:
    now = sample(2)
    now.alarms = [Alarm(True, "The log accepts no more messages. " * 5, "store")] * 3
    text = screen(sample(0), now, rows=6, columns=40, is_colored=False)
    assert len(text.splitlines()) == 5
    assert max(map(len, text.splitlines())) == 40
    assert screen(sample(0), now, 6, 40, is_colored=True).startswith("\x1b[31m")


@pytest.mark.parametrize(("share", "found"), [(0.5, 0.01), (0.9, 0.01), (0.91, float("inf")), (0.01, 0.001)])
def test_quantiles(share: float, found: float) -> None:
    assert quantile({0.01: 9, 0.001: 4, float("inf"): 10}, share) == found
    assert quantile({}, share) is None
    assert quantile({0.1: 0}, share) is None


async def test_a_node_with_traffic(make_node: MakeNode, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    node: Node = await make_node(http__auth=["password"])
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.subscribe((b"home/#", 0))
    await store_messages(node, (b"home/a", b"x"))
    await give_up(node, b"billing", b"home", 1)
    words = ["top", "--once", "--interval", "1"]
    assert await asyncio.to_thread(main, [*words, "--data-dir", str(node.config.data_dir)]) == 0
    shown = capsys.readouterr().out
    assert "clients            1" in shown
    assert "give --host" in shown  # the port is a free one, so /metrics is not looked for
    assert "billing" in shown
    assert "! Somebody has to decide about 1 dead letter of 1 group." in shown

    await set_user(node, "alice", b"wonderland")
    await set_rules(node, "alice", "allow GET,LIST cluster:*", "allow LIST,GET group:*", "allow subscribe $SYS/#")
    (tmp_path / "password").write_text("wonderland\n")
    there = ["--host", f"http://127.0.0.1:{node.ports.http}", "--username", "alice"]
    there += ["--password-file", str(tmp_path / "password")]
    assert await asyncio.to_thread(main, [*words, *there]) == 0
    shown = capsys.readouterr().out
    assert "PARENT TOPIC" in shown
    assert "append to commit" in shown
