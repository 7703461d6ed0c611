"""The gateways of a store: whose a client is when they come back to a store that was opened anew."""

import asyncio
from pathlib import Path

from store.config import StoreConfig
from store.engine import Engine


async def nothing_left(_is_gone: object) -> None:
    """No gateway left anything."""


async def opened(folder: Path) -> Engine:
    engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20))
    await engine.members.serve(nothing_left)
    return engine


async def test_an_order_about_what_a_gateway_only_asked_for_ends_with_the_grant(tmp_path: Path) -> None:
    """Gateway b waits for a client of a while the store restarts. Both name it when they come back, a first."""
    engine = await opened(tmp_path)
    await engine.members.join(b"a", None, False)
    await engine.members.join(b"b", None, False)
    await engine.close()
    engine = await opened(tmp_path)
    members = engine.members
    await members.join(b"a", [(b"s", b"")], False)
    await members.join(b"b", [(b"s", b"")], False)
    asked = asyncio.ensure_future(members.hold(b"b", b"s", b""))
    assert (await members.attend(b"a", {})).orders == [(b"s", True)]
    await members.free(b"a", [b"s"])
    await asked
    assert members.holder(b"s") == b"b"
    members._gateways[b"b"].waiter.set()
    assert (await members.attend(b"b", {})).orders == []
    await engine.close()


async def test_an_order_about_what_a_gateway_has_not_ends_when_it_says_so(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    await engine.members.join(b"a", None, False)
    await engine.members.join(b"b", None, False)
    await engine.close()
    engine = await opened(tmp_path)
    members = engine.members
    await members.join(b"a", [(b"s", b"")], False)
    await members.join(b"b", [(b"s", b"")], False)
    assert (await members.attend(b"b", {})).orders == [(b"s", True)]
    await members.free(b"b", [b"s"])
    members._gateways[b"b"].waiter.set()
    assert (await members.attend(b"b", {})).orders == []
    assert members.holder(b"s") == b"a"
    await engine.close()
