"""Servers for sinks over HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.connect.connectors.http_server import Server, http_server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with http_server() as running:
        yield running
