"""The removal of a user with many sessions."""

import asyncio

import pytest

from gateway.broker.append import append
from gateway.management.areas.access import AccessService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from store import control
from store.errors import StoreError
from tests.gateway.management.world import engine_of
from tests.gateway.people import access, remove_user, set_user

COUNT = 150


@pytest.fixture
async def crowded(node: Node) -> Node:
    """A node with a user alice who has many sessions, and bob who has one."""
    for name in ("alice", "bob"):
        await set_user(node, name, b"x")
    users = [(b"bob-1", b"bob"), *((b"alice-%03d" % number, b"alice") for number in range(COUNT))]
    opened = [control.SessionOpened(1, 3600, True, 10, user, b"").frame(client) for client, user in users]
    await append(engine_of(node), opened)
    return node


async def test_all_sessions_of_a_user_end_with_it(crowded: Node) -> None:
    assert await remove_user(crowded, "alice") == COUNT
    engine = engine_of(crowded)
    assert engine.session_count() == 1
    assert await engine.session_row(b"bob-1") is not None


async def test_sessions_end_together_and_not_all_at_once(crowded: Node) -> None:
    ending = most = 0

    async def end(client_id: bytes) -> None:
        nonlocal ending, most
        ending += 1
        most = max(most, ending)
        for _ in range(3):
            await asyncio.sleep(0)
        await crowded._sessions.remove(client_id)
        ending -= 1

    service = AccessService(engine_of(crowded), end)
    assert (await service.delete_user(pb.DeleteUserRequest(name="alice"), NODE_USER)).sessions == COUNT
    assert most == 64
    assert ending == 0


async def test_a_removal_that_fails_can_be_repeated(crowded: Node) -> None:
    ended: list[bytes] = []

    async def end(client_id: bytes) -> None:
        await asyncio.sleep(0)
        if client_id == b"alice-003":
            raise StoreError("the disk is full")
        await crowded._sessions.remove(client_id)
        ended.append(client_id)

    service = AccessService(engine_of(crowded), end)
    with pytest.raises(StoreError, match="full"):
        await service.delete_user(pb.DeleteUserRequest(name="alice"), NODE_USER)
    assert len(ended) == 63  # those that were on their way came to their end
    again = await access(crowded).delete_user(pb.DeleteUserRequest(name="alice"), NODE_USER)
    assert again.sessions == COUNT - 63
