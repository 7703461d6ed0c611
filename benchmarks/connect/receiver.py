"""`python -m benchmarks.connect.receiver PORT`: answers HTTP requests that have a Content-Length with 200.

It does little for a request, so that the clients that are measured are the limit.
"""

import asyncio
import sys
from typing import Final

import uvloop

_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: receiver\r\nContent-Length: 15\r\n\r\n"
    b'{"status":"ok"}'
)
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        answers = 0
        while (end := data.find(_END)) >= 0:
            head = data[:end].lower()
            at = head.find(_LENGTH)
            size = int(head[at + len(_LENGTH) :].partition(b"\r\n")[0]) if at >= 0 else 0
            if len(data) < end + len(_END) + size:
                break
            data = data[end + len(_END) + size :]
            answers += 1
        self._data = data
        if answers:
            self._transport.write(_ANSWER * answers)  # type: ignore[attr-defined]  # uvloop's is no subclass


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
