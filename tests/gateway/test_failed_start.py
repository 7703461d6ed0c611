"""A node that cannot start leaves no data folder behind that was not there before."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.config import Config
from gateway.node.node import Node
from gateway.node.store_node import StoreNode
from store.config import StoreConfig
from store.engine import Engine


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    """A configuration whose HTTP port another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = Config(data_dir=tmp_path / "data")
        config.mqtt.port = config.mqtt.ws_port = config.grpc.port = 0
        config.http.port = server.getsockname()[1]
        config.split.listen = f"unix:{tmp_path}/store.sock"
        yield config


@pytest.mark.parametrize("kind", [Node, StoreNode])
@pytest.mark.parametrize("counts", [{}, {"home": 9}])
async def test_a_failed_start_removes_a_new_folder(
    config: Config, kind: type[Node | StoreNode], counts: dict[str, int]
) -> None:
    config.store.parent_partitions = counts
    with pytest.raises(OSError, match="in use"):
        await kind(config).start()
    assert not config.data_dir.exists()


async def test_a_failed_start_keeps_a_folder_with_other_files(config: Config) -> None:
    config.data_dir.mkdir()
    (config.data_dir / "notes").touch()
    with pytest.raises(OSError, match="in use"):
        await Node(config).start()
    assert [each.name for each in config.data_dir.iterdir()] == ["notes"]


async def test_a_failed_start_keeps_an_existing_store(config: Config) -> None:
    engine = await Engine.open(config.data_dir, StoreConfig())
    await engine.close()
    with pytest.raises(OSError, match="in use"):
        await Node(config).start()
    assert (config.data_dir / "log" / "00000000000000000000.log").exists()
