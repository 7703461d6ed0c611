"""Groups of shared subscriptions: their lives, and messages that become their sessions' own."""

import asyncio

import pytest

from store.api import (
    Handed,
    Outbound,
    Receipts,
    filter_queue,
)
from store.control import SessionEnded, SessionOpened, ShareJoined, ShareLeft, subscribed
from tests.store.popping import Bench, Q, numbers, payloads
from tests.store.views.sessions.test_sessions import wish

pytestmark = pytest.mark.any_store


async def test_messages_that_are_handed_over_are_their_sessions(bench: Bench):
    """In one record: finished for the group, and on their way to clients that the log knows."""
    group = b"$share/s/a/b"
    await bench.append(SessionOpened(1, 100, True).frame(b"c1"), subscribed(b"c1", [wish(group, qos=2)]))
    await bench.fill(4)
    first = await bench.pop(group=group, records=3)
    assert payloads(first.runs) == numbers(0, 1, 2)
    handed = [Handed(0, 1, b"c1", 7), Handed(1, 1, b"clean", 0), Handed(2, 2, b"c1", 8), Handed(3, 1, b"c1", 9)]
    before = bench.engine.stats().records
    assert await bench.engine.hand_over(group, handed) == [2, 3]
    assert bench.engine.stats().records == before + 1
    session = await bench.engine.session(b"c1")
    assert session is not None
    assert session.outbound == [Outbound(7, group, 0, False, 2)]
    assert await bench.engine.hand_over(group, handed[:2]) == [0, 1]
    await bench.reopen()
    bench.now += 20_000
    assert payloads((await bench.pop(group=group)).runs) == numbers(2, 3)


async def test_handing_over_and_settling_are_not_both_done(bench: Bench):
    """Whoever decides first has the message."""
    group = b"$share/s/a/b"
    await bench.append(ShareJoined().frame(group))
    await bench.fill(2)
    await bench.pop(group=group)
    settling = asyncio.create_task(bench.engine.settle(group, [Receipts(Q, 0, 1, 1)]))
    handing = asyncio.create_task(bench.engine.hand_over(group, [Handed(0, 1, b"c", 0), Handed(1, 1, b"c", 0)]))
    again = asyncio.create_task(bench.engine.settle(group, [], [(Receipts(Q, 1, 1, 1), 0)]))
    assert await settling == []
    assert await handing == [0]
    assert await again == [Receipts(Q, 1, 1, 1)]


async def test_groups_of_shared_subscriptions_are_there_while_they_have_members(bench: Bench):
    """A pop that was decided before the last one left leaves nothing behind."""
    group = b"$share/s/a/+"
    await bench.append(
        SessionOpened(1, 100, True).frame(b"c1"), subscribed(b"c1", [wish(group)]), ShareJoined().frame(group)
    )
    await bench.fill(2)
    assert [state.group for state in await bench.engine.groups(None, 10)] == [group]
    queue = filter_queue(b"a/+")
    await bench.append(SessionEnded(1).frame(b"c1"))
    assert payloads((await bench.pop(queue, group=group, records=1)).runs) == numbers(0)
    left = asyncio.create_task(bench.append(ShareLeft().frame(group)))
    await asyncio.sleep(0)
    await bench.pop(queue, group=group)
    await left
    assert await bench.engine.groups(None, 10) == []
    end = (await bench.engine.bounds(queue)).end
    await bench.fill(1)
    assert (await bench.engine.bounds(queue)).end == end
    await bench.pop(queue, group=group)
    assert await bench.engine.groups(None, 10) == []
    assert await bench.engine.transient_shares(None, 10) == []
