"""The gateways of a store: whose a client is when they come back to a store that was opened anew."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.engine import Engine
from store.gateways.registry import CleanUp, GatewayRegistry
from tests.gateway.connection.test_slow_disk import slow_disk
from tests.waiting import patience, until


async def nothing_left(_is_gone: object) -> None:
    """No gateway left anything."""


@asynccontextmanager
async def come_back(folder: Path) -> AsyncIterator[GatewayRegistry]:
    """Gateways a and b were there before the store was opened anew. Both name the same client, a first."""
    for is_back in (False, True):
        engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20))
        try:
            await engine.gateway_registry.start(nothing_left)
            for name in (b"a", b"b"):
                await engine.gateway_registry.join(name, [(b"s", 1, b"")] if is_back else None, False)
            if is_back:
                yield engine.gateway_registry
        finally:
            await engine.close()


async def orders(registry: GatewayRegistry, name: bytes) -> list[tuple[bytes, int, bool]]:
    """The orders that a gateway gets at its next heartbeat."""
    registry._gateways[name].has_news.set()
    return (await registry.heartbeat(name, {})).orders


async def test_an_order_about_what_another_gateway_has_ends_with_the_grant(tmp_path: Path) -> None:
    async with come_back(tmp_path) as registry:
        asked = asyncio.ensure_future(registry.claim_client(b"b", b"s", 2, b""))
        await asyncio.sleep(0)
        assert await orders(registry, b"a") == [(b"s", 1, True)]
        await registry.release_clients(b"a", [(b"s", 1)])
        await asked
        assert registry.owner(b"s") == b"b"
        assert await orders(registry, b"b") == []


async def test_an_order_about_what_a_gateway_has_not_ends_when_it_says_so(tmp_path: Path) -> None:
    async with come_back(tmp_path) as registry:
        assert await orders(registry, b"b") == [(b"s", 1, True)]
        await registry.release_clients(b"b", [(b"s", 1)])
        assert await orders(registry, b"b") == []
        assert registry.owner(b"s") == b"a"


@asynccontextmanager
async def opened(
    folder: Path, clean_up_after: CleanUp = nothing_left, lease_s: float = StoreConfig().lease_s
) -> AsyncIterator[Engine]:
    """A store that takes gateways."""
    engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20, lease_s=lease_s))
    try:
        await engine.gateway_registry.start(clean_up_after)
        yield engine
    finally:
        await engine.gateway_registry.stop()
        await engine.close()


async def test_a_gateway_that_does_not_wait_for_its_end_is_ended(tmp_path: Path) -> None:
    """It says that it leaves, and is killed while what it left is seen to: its clients are free behind that."""
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def clean_up_after(is_gone: Callable[[bytes], bool]) -> None:
        if is_gone(b"a"):
            begun.set()
            await goes_on.wait()

    goes_on.set()
    async with opened(tmp_path, clean_up_after) as engine:
        for name in (b"a", b"b"):
            await engine.gateway_registry.join(name, None, False)
        await engine.gateway_registry.claim_client(b"a", b"s", 1, b"")
        goes_on.clear()
        leaving = asyncio.ensure_future(engine.gateway_registry.leave(b"a"))
        begun.clear()
        await begun.wait()
        leaving.cancel()
        await asyncio.wait([leaving])
        goes_on.set()
        async with patience():
            await engine.gateway_registry.claim_client(b"b", b"s", 1, b"")


async def test_a_gateway_that_does_not_wait_for_its_beginning_is_ended(tmp_path: Path) -> None:
    """Else the next process of the store would wait for it for a lease, and give no client to anybody meanwhile."""
    async with opened(tmp_path) as engine:
        joining = asyncio.ensure_future(engine.gateway_registry.join(b"a", None, False))
        await until(lambda: not engine.gateway_registry.has_ended(b"a"))
        joining.cancel()
        await asyncio.wait([joining])
        await engine.gateway_registry.join(b"b", None, False)
        assert engine._views.gateways.page(None, 9) == [b"b"]
        assert engine.gateway_registry.has_ended(b"a")


@pytest.mark.usefixtures("interpreted_flushes")
async def test_a_gateway_is_not_ended_while_a_slow_disk_writes_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_s = 0.05
    ended: list[bytes] = []
    async with opened(tmp_path, lease_s=lease_s) as engine:
        registry, loop = engine.gateway_registry, asyncio.get_running_loop()
        registry.on_ended = ended.append
        go_on = slow_disk(monkeypatch)
        began = loop.time()
        joining = asyncio.ensure_future(registry.join(b"a", None, False))
        await until(lambda: loop.time() > began + 4 * lease_s)
        go_on.set()
        await joining
        assert not ended
        await until(lambda: ended == [b"a"])  # it sends no heartbeat


async def test_until_all_gateways_of_before_are_back_they_may_have_any_client(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.gateway_registry.join(b"a", None, False)
        assert not engine.gateway_registry.may_have(b"s")
    async with opened(tmp_path) as engine:
        assert engine.gateway_registry.may_have(b"s")
        await engine.gateway_registry.join(b"a", [(b"t", 1, b"")], False)
        assert not engine.gateway_registry.may_have(b"s")
        assert engine.gateway_registry.may_have(b"t")
