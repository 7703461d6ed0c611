"""Taking connections from a socket that listens."""

import errno
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from gateway.net import bind

try:
    from gateway.listen._streams import accept
except ImportError:  # not compiled
    WAYS = [bind.accept]
else:
    WAYS = [bind.accept, accept]

Accept = Callable[[int], int]


@pytest.fixture
async def listening() -> socket.socket:
    (made,), _ = await bind.bind("127.0.0.1:0")
    return made


@pytest.fixture(autouse=True)
def closed(listening: socket.socket) -> Iterator[None]:
    yield
    listening.close()


@pytest.mark.parametrize("take", WAYS)
async def test_waiting_connections_are_accepted_one_by_one(listening: socket.socket, take: Accept) -> None:
    assert take(listening.fileno()) == -1
    clients = [socket.create_connection(listening.getsockname()) for _ in range(2)]
    places = []
    for _ in clients:
        with socket.socket(fileno=take(listening.fileno())) as served:
            places.append(served.getpeername())
            assert not os.get_blocking(served.fileno())
            assert not os.get_inheritable(served.fileno())
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert places == [client.getsockname() for client in clients]
    assert take(listening.fileno()) == -1
    for client in clients:
        client.close()


@pytest.mark.parametrize("take", WAYS)
async def test_accepting_a_connection_that_was_reset(listening: socket.socket, take: Accept) -> None:
    client = socket.create_connection(listening.getsockname())
    client.close()
    with socket.socket(fileno=take(listening.fileno())) as served:
        assert served.recv(1) == b""


@pytest.mark.parametrize("take", WAYS)
def test_invalid_addresses_are_errors(take: Accept) -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="socket") as raised:
            take(reading)
        assert raised.value.errno == errno.ENOTSOCK
    finally:
        os.close(reading)
        os.close(writing)
