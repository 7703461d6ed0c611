"""Streams of producers that move from gateway to gateway: only the gateway that asked last stores more of them."""

import asyncio
from pathlib import Path

import record
from notify.event_receiver import EventReceiver
from record.layout import Kind
from store import control
from store.api import Appended, topic_queue
from store.errors import StoreError
from store.remote import RemoteStore
from store.remote.server import moved_producers
from store.remote.server.moved_producers import MovedProducers
from tests.store.remote.test_breaks import QUICK, serving, sockets

__all__ = ["sockets"]

CLIENT = b"sdk/a"


def frames(sequence: int) -> list[bytes]:
    message = record.frame(Kind.MESSAGE, 1, 0, b"a/b", b"c", b"", b"%d" % sequence)
    return [control.Produced(sequence, 1).frame(CLIENT), message]


async def append(store: RemoteStore, some: list[bytes]) -> Appended:
    answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    store.append(some, answer.set_result)
    return await answer


async def test_what_the_gateway_of_before_still_has_is_not_stored(tmp_path: Path, sockets: Path):
    async with serving(tmp_path, sockets) as (_, _, address):
        one = await RemoteStore.open(address, "a", EventReceiver(), QUICK)
        other = await RemoteStore.open(address, "b", EventReceiver(), QUICK)
        assert (await append(one, frames(1))).error is None
        late = asyncio.create_task(append(one, frames(2)))
        await one.bounds(b"")  # the store has it
        known = await other.produced(CLIENT)
        assert known is not None and known[:2] == (2, 0)
        assert (await late).error is None
        error = (await append(one, frames(3))).error
        assert type(error) is StoreError and "has moved to another gateway" in str(error)
        assert (await append(one, frames(3)[1:])).error is None  # messages of others
        assert (await append(other, frames(3))).error is None
        assert await one.produced(CLIENT) == (3, 0, 0)  # the client is back
        assert (await append(other, frames(4))).error is not None
        assert (await append(one, frames(4))).error is None
        assert (await one.bounds(topic_queue(b"a/b"))).end == 5
        await one.close()
        await other.close()


def test_only_so_many_moves_are_remembered(monkeypatch):
    monkeypatch.setattr(moved_producers, "_MAX_PRODUCERS", 2)
    moved = MovedProducers()
    assert not moved.has_gone(frames(1), b"old")
    moved.move(CLIENT, b"new")
    moved.move(b"sdk/b", b"new")
    moved.move(CLIENT, b"new")
    moved.move(b"sdk/c", b"new")
    assert moved.has_gone(frames(1), b"old")
    assert not moved.has_gone(frames(1), b"new")
    moved.move(b"sdk/d", b"new")
    moved.move(b"sdk/e", b"new")
    assert not moved.has_gone(frames(1), b"old")
