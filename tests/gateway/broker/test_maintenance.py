"""Maintenance runs once for each store."""

import asyncio
from typing import cast

import pytest

from gateway.broker.maintenance import Maintenance
from gateway.broker.wills import Wills
from store.engine import Engine


class Expired:
    """A store with sessions that have expired."""

    def __init__(self, clients: list[bytes]) -> None:
        self.clients = clients
        self.asked = 0

    async def sessions_expired(self, _now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        self.asked += 1
        assert self.asked < 100, "it asks again and again"
        return [(client, 1) for client in self.clients[:limit]]

    async def bans(self, _after: bytes | None, _limit: int) -> list[object]:
        return []

    async def open_access_requests(self) -> list[object]:
        return []


async def test_expired_sessions_that_are_all_being_opened_do_not_keep_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.broker.maintenance._PAGE", 2)
    store = Expired([b"a", b"b", b"c"])
    keeping = Maintenance(cast("Engine", store), cast("Wills", None), {b"a", b"b"}.__contains__)
    sweep = asyncio.create_task(keeping._sweep())
    await asyncio.sleep(0)
    assert store.asked == 1
    assert not sweep.done()
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)
