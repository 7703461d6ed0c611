"""The gathering of writes."""

import asyncio

from gateway.net.write_buffer import Flusher, Outlet


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
    for outlet in (Outlet(flusher, bad), Outlet(flusher, good)):
        outlet.send(b"a")
        outlet.send(b"b")
    flusher.flush()
    assert good.written == [b"ab"]
