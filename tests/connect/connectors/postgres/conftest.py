"""A PostgreSQL of Debian for the tests of this folder, and a schema of its own for each of them."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from sluice.demo.engine_servers import ServerMissing
from sluice.demo.postgres_server import PostgresServer
from tests.system.tools import missing


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    try:
        made = PostgresServer("fsync=off", "max_replication_slots=40", "max_wal_senders=40")
    except ServerMissing as error:
        missing(str(error))
        raise
    with made:
        yield made


@pytest.fixture
async def database(server: PostgresServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection to the server, whose tables go after the test."""
    async with await psycopg.AsyncConnection.connect(server.uri, autocommit=True) as connection:
        yield connection
        await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
