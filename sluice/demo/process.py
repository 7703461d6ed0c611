"""A child process that speaks lines: started, heard with a time limit, and never left behind."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

_LINE_LIMIT: Final = 16 << 20  # bytes of one line: the fleet's last one lists what was acknowledged
_TAIL_LINES: Final = 15
_STOP_SECONDS: Final = 10


class DemoError(Exception):
    """The demo cannot go on. The message is for the person who watches."""


class Child:
    """A Python process of this installation, `python -m module …`; its standard error goes to a log file."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, module: str, arguments: Sequence[str], **environment: str) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                limit=_LINE_LIMIT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its children in order
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def line(self, seconds: float) -> str:
        """The next line. Raises `DemoError` when the process ends instead, or says nothing for `seconds`."""
        process = self._started()
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await process.stdout.readline()
        except TimeoutError:
            raise DemoError(f"{self.name} said nothing for {seconds:.0f} s{self.tail()}") from None
        if not line:
            raise DemoError(f"{self.name} ended with exit code {await process.wait()}{self.tail()}")
        return line.decode()

    async def message(self, seconds: float) -> dict[str, object]:
        """The next line that is a JSON object; libraries may print others."""
        while not (line := await self.line(seconds)).startswith("{"):
            pass
        value = orjson.loads(line)
        assert isinstance(value, dict)
        return value

    async def say(self, line: str) -> None:
        process = self._started()
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # that it is gone is found out by listening
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()

    async def leave(self, seconds: float) -> None:
        """Close its standard input, which tells it to end, and kill it if it does not within `seconds`."""
        if self.running:
            process = self._started()
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
        await self.kill()

    async def kill(self) -> None:
        """`kill -9`, for the process and what it started."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started().pid, signal.SIGKILL)
            await self._started().wait()

    async def stop(self) -> int:
        """SIGTERM, then SIGKILL if that does not do it in time. Returns the exit code."""
        process = self._started()
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                await self.kill()
        return await process.wait()

    def tail(self) -> str:
        """The end of its log, to be put behind a message; nothing when it has written none."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            lines = []
        return f"; its log ends so ({self._log}):\n" + "\n".join(f"  {line}" for line in lines) if lines else ""

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise DemoError(f"{self.name} was not started")
        return self._process
