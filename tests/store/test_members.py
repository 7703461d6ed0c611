"""The gateways of a store: whose a client is when they come back to a store that was opened anew."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from store.config import StoreConfig
from store.engine import Engine
from store.members import Members


async def nothing_left(_is_gone: object) -> None:
    """No gateway left anything."""


@asynccontextmanager
async def come_back(folder: Path) -> AsyncIterator[Members]:
    """Gateways a and b were there before the store was opened anew. Both name the same client, a first."""
    for is_back in (False, True):
        engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20))
        try:
            await engine.members.serve(nothing_left)
            for name in (b"a", b"b"):
                await engine.members.join(name, [(b"s", b"")] if is_back else None, False)
            if is_back:
                yield engine.members
        finally:
            await engine.close()


async def orders(members: Members, name: bytes) -> list[tuple[bytes, bool]]:
    """What a gateway is told to give up, now."""
    members._gateways[name].waiter.set()
    return (await members.attend(name, {})).orders


async def test_an_order_about_what_another_gateway_has_ends_with_the_grant(tmp_path: Path) -> None:
    async with come_back(tmp_path) as members:
        asked = asyncio.ensure_future(members.hold(b"b", b"s", b""))
        await asyncio.sleep(0)
        assert await orders(members, b"a") == [(b"s", True)]
        await members.free(b"a", [b"s"])
        await asked
        assert members.holder(b"s") == b"b"
        assert await orders(members, b"b") == []


async def test_an_order_about_what_a_gateway_has_not_ends_when_it_says_so(tmp_path: Path) -> None:
    async with come_back(tmp_path) as members:
        assert await orders(members, b"b") == [(b"s", True)]
        await members.free(b"b", [b"s"])
        assert await orders(members, b"b") == []
        assert members.holder(b"s") == b"a"
