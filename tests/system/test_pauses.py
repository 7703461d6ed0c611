"""A node that stood still for a while (a moved virtual machine, SIGSTOP) does not blame its clients."""

import asyncio
import signal
import struct
from collections.abc import Callable
from typing import Any

import pytest

PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"


def connect_packet(client_id: bytes, keep_alive: int) -> bytes:
    body = b"\x00\x04MQTT\x04\x02" + struct.pack("!HH", keep_alive, len(client_id)) + client_id
    return b"\x10" + bytes([len(body)]) + body


@pytest.mark.slow
async def test_clients_that_pinged_while_the_node_was_stopped_stay_connected(make_node: Callable[..., Any]) -> None:
    node = make_node()
    node.start()
    clients = []
    for number in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.mqtt_port)
        writer.write(connect_packet(b"c%d" % number, 1))
        assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
        clients.append((reader, writer))
    node.process.send_signal(signal.SIGSTOP)
    try:
        for _, writer in clients:
            writer.write(PINGREQ)
        await asyncio.sleep(2.5)  # keep-alive is over one and a half seconds after the last packet read
    finally:
        node.process.send_signal(signal.SIGCONT)
    for reader, writer in clients:
        async with asyncio.timeout(10):
            assert await reader.readexactly(2) == PINGRESP
        writer.close()
