"""Child processes that exchange lines with the demo, with a time limit on every wait."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

_LINE_LIMIT: Final = 16 << 20  # bytes of one line; the last line of the fleet lists every acknowledged range
_TAIL_LINES: Final = 15
_COMMAND_SECONDS: Final = 60
_STOP_SECONDS: Final = 30  # a node of a cluster may hand over first


class DemoError(Exception):
    """The demo cannot continue. The message is for the user."""


async def run_command(*arguments: str) -> None:
    """Run `sluice` with these arguments. Raises `DemoError` with what it printed if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sluice",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_COMMAND_SECONDS):
            printed, _ = await process.communicate()
    except BaseException as error:
        process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise DemoError(f"`sluice {arguments[0]} {arguments[1]}` took {_COMMAND_SECONDS} s") from error
        raise
    if process.returncode:
        raise DemoError(f"`sluice {arguments[0]} {arguments[1]}` failed: {printed.decode(errors='replace').strip()}")


class ChildProcess:
    """A Python process `python -m module …` of this installation. Its standard error goes to a log file."""

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
                start_new_session=True,  # Ctrl-C reaches the demo only, which ends its children in order
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def line(self, seconds: float) -> str:
        """Return the next line. Raises `DemoError` when the process ends, or writes nothing for `seconds`."""
        process = self._started()
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await process.stdout.readline()
        except TimeoutError:
            raise DemoError(f"{self.name} wrote nothing for {seconds:.0f} s{self.tail()}") from None
        if not line:
            raise DemoError(f"{self.name} ended with exit code {await process.wait()}{self.tail()}")
        return line.decode()

    async def message(self, seconds: float) -> dict[str, object]:
        """Return the next line that is a JSON object. Libraries may print other lines."""
        while not (line := await self.line(seconds)).startswith("{"):
            pass
        value = orjson.loads(line)
        assert isinstance(value, dict)
        return value

    async def say(self, line: str) -> None:
        process = self._started()
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # reading reports a process that has ended
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()

    async def close(self, seconds: float) -> None:
        """Close the standard input of the process as a request to end. Kill it after `seconds`."""
        if self.running:
            process = self._started()
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill the process and its children with SIGKILL."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started().pid, signal.SIGKILL)
            await self._started().wait()

    async def stop(self) -> int:
        """Send SIGTERM, and SIGKILL after a time limit. Return the exit code."""
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
        """Return the end of the log file as a suffix of an error message; empty without a log."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            lines = []
        return f"; the end of its log ({self._log}):\n" + "\n".join(f"  {line}" for line in lines) if lines else ""

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise DemoError(f"{self.name} was not started")
        return self._process
