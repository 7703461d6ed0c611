"""A node reads its configuration again, and what it does changes while its clients stay connected."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.config import ConfigError, load
from gateway.node.node import Node
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, PUBACK, RawClient, connect
from tests.waiting import until

SEGMENT = 256 << 10


class Changing:
    """A node with a configuration file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "sluice.toml"
        self.path.write_text("")
        free = dict.fromkeys(("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port"), 0)
        small = {"data_dir": folder / "data", "store.segment_size": SEGMENT, "mqtt.max_packet_size": 100_000}
        self.node = Node(load(self.path, {**free, **small}, {}))

    async def read(self, text: str) -> None:
        self.path.write_text(text)
        await self.node.reload()


@pytest.fixture
async def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Changing]:
    changing = Changing(tmp_path)
    await changing.node.start()
    yield changing
    await changing.node.stop()
    logging.getLogger().setLevel(logging.WARNING)


async def test_limits_of_connections_change(changing: Changing) -> None:
    port = changing.node.ports.mqtt
    first = await RawClient.connect(port, b"1")
    await changing.read("[mqtt]\nmax_connections = 1\n")
    refused = await RawClient.open(port, 5)
    refused.send(connect(5, b"2"))
    assert (await refused.expect(CONNACK)).body[1] == 0x97
    await changing.read("[mqtt]\nmax_connections = 3\nmax_keep_alive = 9\n")
    second = await RawClient.connect(port, b"2", 5, keep_alive=100)
    assert b"\x13" + wire.u16(9) in second.connack.body
    await first.quiet()
    await changing.read("[mqtt]\nconnect_rate = 1\n")
    await RawClient.connect(port, b"3")
    late = await RawClient.open(port, 5)
    late.send(connect(5, b"4"))
    assert (await late.expect(CONNACK)).body[1] == 0x9F


async def test_a_publish_rate_holds_for_those_who_are_connected(changing: Changing) -> None:
    client = await RawClient.connect(changing.node.ports.mqtt, b"c", 5)
    await changing.read("[mqtt]\npublish_rate = 100000\n")
    await client.publish(b"t", b"x", 1)
    await changing.read("[mqtt]\npublish_rate = 100\n")
    client.send(*[wire.publish(5, b"t", b"x") for _ in range(150)])
    await until(lambda: changing.node.counters.publishers_paced)
    client.send(wire.publish(5, b"t", b"x", 1, 1))
    await client.expect(PUBACK)


async def test_retention_begins_with_a_new_limit(changing: Changing) -> None:
    client = await RawClient.connect(changing.node.ports.mqtt, b"c", 5)
    engine = changing.node._engine
    assert engine is not None
    for number in range(10):
        client.send(wire.publish(5, b"t", b"x" * 90_000, 1, number + 1))
        await client.expect(PUBACK)
    assert engine.stats().log_begin == 0
    await changing.read(f"[store]\nretention_bytes = {SEGMENT}\n")
    await until(lambda: engine.stats().log_begin >= SEGMENT)
    client.send(wire.publish(5, b"t", b"x", 1, 1))
    await client.expect(PUBACK)


async def test_the_log_says_what_changed_and_what_waits(changing: Changing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await changing.read("log_level = 'info'\nhost = '::1'\n[mqtt]\nmax_sessions = 7\n[grpc]\nmax_calls = 9\n")
    assert "settings changed: mqtt.max_sessions" in caplog.messages
    assert "settings that change with the next restart: host, grpc.max_calls" in caplog.messages
    caplog.clear()
    await changing.read("log_level = 'error'\n")
    assert logging.getLogger().level == logging.ERROR


async def test_a_wrong_file_changes_nothing(changing: Changing, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="prot"):
        await changing.read("[mqtt]\nmax_connections = 1\nprot = 3\n")
    assert next(each.message for each in caplog.records if each.levelno == logging.ERROR).startswith(
        "the configuration stays as it is: unknown setting 'mqtt.prot'"
    )
    for name in (b"1", b"2"):
        await RawClient.connect(changing.node.ports.mqtt, name)
