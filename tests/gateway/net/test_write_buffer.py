"""The gathering of writes."""

import asyncio

from gateway.net.write_buffer import Flusher, WriteBuffer


class Socket:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.written.append(data)


async def test_a_socket_that_fails_keeps_no_other_from_its_bytes():
    flusher = Flusher(asyncio.get_running_loop())
    bad, good = Socket(RuntimeError("gone")), Socket()
    for write_buffer in (WriteBuffer(flusher, bad), WriteBuffer(flusher, good)):
        write_buffer.send(b"a")
        write_buffer.send(b"b")
    flusher.flush()
    assert good.written == [b"ab"]
