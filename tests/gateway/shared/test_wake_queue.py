"""A message that matches many shared subscriptions: some of them get it in each turn of the loop."""

import asyncio
from itertools import pairwise

import pytest

from gateway.node.node import Node
from gateway.shared.group import SharedGroup
from gateway.shared.wake_queue import WakeQueue
from store.api import Commit
from tests.gateway.raw import RawClient
from tests.gateway.session.test_durable import numbers, publish


async def test_groups_are_woken_in_turns_first_come_first_served(node: Node) -> None:
    assert node._engine is not None
    tasks: set[asyncio.Task[None]] = set()
    names = [b"$share/g%d/#" % number for number in range(100)]
    groups = [SharedGroup(name, node._engine, node.counters, b"", 1000, tasks, lambda *_: None) for name in names]
    queue = WakeQueue(asyncio.get_running_loop())
    for group in [*groups, *groups]:
        queue.add(group)
    woken = [[group._has_more for group in groups].count(True)]
    while woken[-1] < len(groups):
        await asyncio.sleep(0)
        states = [group._has_more for group in groups]
        assert states == sorted(states, reverse=True)
        woken.append(states.count(True))
    assert woken == [32, 64, 96, 100]


async def test_each_of_many_groups_gets_each_message_once_and_in_order(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    names = [b"$share/g%d/t/#" % number for number in range(100)]
    for name in names:
        assert await client.subscribe((name, 0)) == b"\0"
    await publish(node, b"t/x", *numbers(0, 5))
    got = [message.payload for message in await client.take(5 * len(names))]
    assert sorted(got) == sorted(numbers(0, 5) * len(names))
    await client.quiet()


async def test_groups_of_many_topics_are_matched_in_turns(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node._engine is not None
    shared = node._sessions.shared_subscriptions
    groups = [shared._add_group(b"$share/g%d/t/+" % number) for number in range(1000)]
    added = 0

    class Counted:
        def add(self, group: SharedGroup) -> None:
            nonlocal added
            added += 1
            group.wake()

    monkeypatch.setattr(shared, "_wake_queue", Counted())
    commit = Commit(b"", 0, 0)
    commit.topics = [b"t/%d" % number for number in range(20)]
    rest = shared._deliver(commit)
    counts = [added]
    while rest is not None and rest():
        counts.append(added)
    counts.append(added)
    assert added == 20_000
    assert max(later - earlier for earlier, later in pairwise([0, *counts])) <= 4096
    assert all(group._has_more for group in groups)
    missed = Commit(b"", 9, 0)
    missed.missed_from = 0
    assert shared._deliver(missed) is None
    assert added == 21_000
    for group in groups:
        shared._drop_if_empty(group)
