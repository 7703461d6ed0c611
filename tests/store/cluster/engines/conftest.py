"""Engines of shared logs: a folder, and real servers on the loopback interface, once for a whole run."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from sluice.demo.engine_servers import NatsServers, SeaweedServers, ServerMissing
from store.cluster.shared_log import SharedLog
from tests.store.cluster.engines.engine import Engine

_numbers = count(1)


@pytest.fixture(scope="session")
def nats_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """Three servers of one cluster."""
    yield from _running(lambda: NatsServers(tmp_path_factory.mktemp("nats")))


@pytest.fixture(scope="session")
def seaweed_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServers]:
    yield from _running(lambda: SeaweedServers(tmp_path_factory.mktemp("seaweedfs")))


def _running(make: Callable[[], NatsServers | SeaweedServers]) -> Iterator[NatsServers | SeaweedServers]:
    try:
        servers = make()
    except ServerMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with servers:
        yield servers
        for server in servers.servers:  # nothing of them is needed any more, and SeaweedFS ends in 5 s
            server.kill()


@pytest.fixture
def jetstream(nats_servers: NatsServers) -> Engine:
    return Engine(nats_servers.url(f"log{next(_numbers)}"), nats_servers.options, nats_servers)


@pytest.fixture
def seaweedfs(seaweed_servers: SeaweedServers) -> Engine:
    return Engine(seaweed_servers.url(f"log{next(_numbers)}"), seaweed_servers.options, seaweed_servers)


@pytest.fixture
def folder(tmp_path: Path) -> Engine:
    return Engine(f"file://{tmp_path}/log", {}, None)


_SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("seaweedfs", "jetstream")]


@pytest.fixture(params=["folder", *_SERVERS])
def engine(request: pytest.FixtureRequest) -> Engine:
    """A place for a new log, in each engine."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=_SERVERS)
def served_engine(request: pytest.FixtureRequest) -> Engine:
    """A place for a new log, in each engine that has servers."""
    return request.getfixturevalue(request.param)


@pytest.fixture
async def log(engine: Engine) -> AsyncIterator[SharedLog]:
    """A new log."""
    opened = await engine.open()
    yield opened
    await opened.close()
