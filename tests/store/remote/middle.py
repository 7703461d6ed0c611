"""A proxy between a gateway and its store, that a test has break connections, or let nothing through."""

import asyncio
import contextlib


class Middle:
    """Passes bytes on, both ways. All traffic is on 127.0.0.1 or a Unix socket."""

    def __init__(self, path: str) -> None:
        self.path = path  # of the store's socket
        self.accepted = 0
        self.delay_s = 0.0  # of what passes
        self._open = asyncio.Event()  # bytes pass
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Returns the address for gateways."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections; what is on its way is lost."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Let nothing through, and say nothing: a network that is parted."""
        self._open.clear()

    def let(self) -> None:
        self._open.set()

    def end_half(self) -> None:
        """Say the end of one direction of each connection: the other side may think that it goes on."""
        for writer in list(self._writers)[::2]:
            with contextlib.suppress(OSError):
                writer.write_eof()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self.path)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for one, other in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pass(one, other, (writer, far_writer)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, both: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the latter: one direction was ended
            while data := await reader.read(1 << 16):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        for each in both:
            each.transport.abort()
            self._writers.discard(each)
