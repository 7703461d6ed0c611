"""Sinks of files and tables whose workers are killed while they write: each message is there once."""

import asyncio
import json

import pytest

from tests.connect.connectors.test_sinks_at_a_worker import KINDS
from tests.connect.runtime.conftest import Connect, connect, node
from tests.connect.runtime.test_kills import two_workers

__all__ = ["connect", "node"]  # the fixtures

pytestmark = pytest.mark.slow

A_KILL = 150  # messages between two kills


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
async def test_each_message_is_stored_once_however_often_workers_are_killed(
    connect: Connect, kind: str, kills: int
) -> None:
    stored, given = KINDS[kind]
    config = {"connector.class": kind, "topics": "fleet/#", "tasks.max": "2", **given(connect.folder)}
    await connect.set("lake", config | {"consumer.override.max.poll.records": "40"})
    async with two_workers(connect) as workers:
        for kill in range(kills):
            for number in range(kill * A_KILL, (kill + 1) * A_KILL):
                await connect.client.send(f"fleet/d{number % 5}/t", json.dumps({"n": number}).encode())
            await workers.kill_holder(f"lake/{kill % 2}")
        async with asyncio.timeout(100):
            while len(stored(connect.folder)) < kills * A_KILL:  # noqa: ASYNC110  another process
                await asyncio.sleep(0.2)
    assert sorted(stored(connect.folder)) == list(range(kills * A_KILL))
