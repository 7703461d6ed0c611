"""Clients that wait for their session are checked: one that has left waits no more."""

import asyncio
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.auth.refusal import ClientGone
from gateway.broker import wait_limit as patience
from gateway.broker.wait_limit import WaitLimit
from gateway.net.peer_closed import has_left


class Ends:
    """Both ends of a connection; `self` is the transport of this one."""

    def __init__(self, family: socket.AddressFamily, is_encrypted: bool) -> None:
        self._is_encrypted = is_encrypted
        if family == socket.AF_UNIX:
            self.here, self.there = socket.socketpair()
        else:
            with socket.create_server(("127.0.0.1", 0)) as server:
                self.there = socket.create_connection(server.getsockname())
                self.here = server.accept()[0]

    def get_extra_info(self, name: str) -> Any:
        if name == "ssl_object":
            return self if self._is_encrypted else None
        return self.here if name == "socket" else None

    def close(self) -> None:
        self.here.close()
        self.there.close()

    def has_left(self) -> bool:
        return has_left(self)  # type: ignore[arg-type]

    async def hears(self) -> None:
        """The other end's end has arrived."""
        await asyncio.to_thread(self.here.recv, 1 << 20, socket.MSG_PEEK | socket.MSG_WAITALL)


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    found = Ends(request.param, is_encrypted=False)
    yield found
    found.close()


def test_a_connected_client_has_not_left(ends: Ends) -> None:
    assert not ends.has_left()
    ends.there.sendall(b"\xe0\0")
    ends.here.recv(1, socket.MSG_PEEK)
    assert not ends.has_left()


@pytest.mark.parametrize("last", [b"", b"\xe0\0"], ids=["nothing", "DISCONNECT"])
async def test_a_client_that_closed_has_left(ends: Ends, last: bytes) -> None:
    ends.there.sendall(last)
    ends.there.close()
    await ends.hears()
    assert ends.has_left()


async def test_a_half_closed_client_with_unread_bytes_has_not_left(ends: Ends) -> None:
    ends.there.sendall(b"x" * 32)
    ends.there.close()
    await ends.hears()
    assert not ends.has_left()


def test_a_client_that_reset_has_left() -> None:
    ends = Ends(socket.AF_INET, is_encrypted=False)
    ends.there.sendall(b"x" * 32)
    ends.there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    ends.there.close()
    arrived = select.poll()
    arrived.register(ends.here, 0)
    assert arrived.poll(10_000)
    assert ends.has_left()
    ends.here.close()
    assert ends.has_left()


async def test_the_end_of_tls_is_a_farewell() -> None:
    ends = Ends(socket.AF_INET, is_encrypted=True)
    ends.there.sendall(b"x" * 31)
    ends.there.close()
    await ends.hears()
    assert ends.has_left()
    ends.close()


async def waits(started: asyncio.Event, ended: list[str]) -> None:
    started.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("work")


async def test_the_work_for_one_that_has_left_is_called_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_CHECK_SECONDS", 0)
    kept, ended = WaitLimit(), list[str]()
    left, started = asyncio.Event(), [asyncio.Event(), asyncio.Event()]
    one = asyncio.ensure_future(kept.run(b"a", left.is_set, waits(started[0], ended)))
    other = asyncio.ensure_future(kept.run(b"b", lambda: False, waits(started[1], ended)))
    for each in started:
        await each.wait()
    left.set()
    with pytest.raises(ClientGone):
        await one
    assert ended == ["work"]
    assert not other.done()
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_no_connection_is_checked_while_none_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_CHECK_SECONDS", 0)
    looks = 0

    def has_left() -> bool:
        nonlocal looks
        looks += 1
        return False

    kept = WaitLimit()
    await kept.run(b"a", has_left, asyncio.sleep(0))
    for _ in range(3):
        await asyncio.sleep(0)
    seen = looks
    for _ in range(20):
        await asyncio.sleep(0)
    assert looks == seen
    with pytest.raises(ValueError, match="its own"):
        await kept.run(b"a", has_left, fails())
    assert not kept._waiting


async def fails() -> None:
    raise ValueError("its own")
