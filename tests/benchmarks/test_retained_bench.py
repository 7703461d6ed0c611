"""The measurement of retained values: it takes what a broker sends, however it is cut, and misses nothing unnoticed."""

import socket
import threading
from collections.abc import Iterable

import pytest

from benchmarks import retained
from benchmarks.retained import Client, topic

SUBACK = b"\x90\x03\x00\x01\x00"


def value(number: int, qos: int = 0) -> bytes:
    """A retained value as a broker sends it."""
    name = topic(number)
    body = len(name).to_bytes(2) + name + (b"\x00\x01" if qos else b"") + retained._PAYLOAD
    return bytes([0x31 | qos << 1, len(body)]) + body


def client_of(chunks: Iterable[bytes]) -> Client:
    """A client of a broker that sends these chunks after CONNACK, and closes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        broker, _ = listening.accept()
        with broker, listening:
            broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            broker.recv(1000)
            broker.sendall(b"\x20\x02\x00\x00" + b"".join(chunks))

    threading.Thread(target=serve).start()
    return Client(listening.getsockname()[1], b"c")


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("place", [0, 3, 10])
@pytest.mark.parametrize("at_once", [1, 7, 1 << 16])
def test_values_are_taken_however_they_are_cut(qos: int, place: int, at_once: int) -> None:
    packets = [value(number, qos) for number in range(10)]
    client = client_of([*packets[:place], SUBACK, *packets[place:]])
    found: list[bytes] = []
    for some in client.packets(qos, at_once):
        found += some
        if len(found) == len(packets):
            break
    client.close()
    assert found == packets


def test_a_broker_that_closes_has_not_sent_all() -> None:
    client = client_of([SUBACK, value(0)])
    with pytest.raises(retained.Incomplete):
        list(client.packets(0))
    client.close()
