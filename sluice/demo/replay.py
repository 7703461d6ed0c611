"""What the scenarios of the demo share: the devices that replay readings, waits with a limit, and progress bars."""

import asyncio
import signal
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sluice.demo.process import ChildProcess, DemoError
from sluice.demo.tally import Tally, from_ranges

SILENCE_SECONDS: Final = 30  # the longest silence of the fleet
CATCH_UP_SECONDS: Final = 180
_GIVE_UP_FACTOR: Final = 3  # the fleet gives up after this many times the replay's length
_POLL: Final = 0.1

Outcome = TypeVar("Outcome")  # the figures of a scenario's summary


@dataclass(slots=True, frozen=True)
class DemoOptions:
    """The options of the command line."""

    folder: Path  # of this run, new and empty
    readings: int
    seconds: float

    @classmethod
    def of(cls, parent: Path | None, readings: int, seconds: float) -> "DemoOptions":
        """Create a folder for the run in `parent`, or a temporary one."""
        if parent is None:
            return cls(Path(tempfile.mkdtemp(prefix="sluice-demo-")), readings, seconds)
        folder = parent.resolve() / f"run-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        folder.mkdir(parents=True)
        return cls(folder, readings, seconds)


def exit_code(scenario: Coroutine[Any, Any, bool], folder: Path, console: Console) -> int:
    """Run a scenario and return the exit code: 0 if it returned True, else 1, and 130 after Ctrl-C or SIGTERM."""
    try:
        return 0 if asyncio.run(_until_sigterm(scenario)) else 1
    except DemoError as error:
        console.print(f"[bold red]The demo failed:[/] {error}", highlight=False)
        console.print(f"Logs and data: {folder}", highlight=False, soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped")
        return 130


async def _until_sigterm(scenario: Coroutine[Any, Any, bool]) -> bool:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await scenario


class Replay(Generic[Outcome]):
    """A scenario: its steps in order, its devices, its background tasks and its progress."""

    def __init__(self, options: DemoOptions, console: Console) -> None:
        self._folder = options.folder
        self._options = options
        self._began = time.monotonic()
        self._fleet = ChildProcess("the fleet of devices", self._folder / "devices.log")
        self._background: list[asyncio.Task[None]] = []
        self._planned = 0
        self._figures: dict[str, int] = {"sent": 0, "acked": 0, "resent": 0, "connects": 0}
        self._acknowledged: dict[str, set[int]] = {}
        self._last_line: dict[str, Any] = {}  # of the fleet
        self.progress = Progress(
            TextColumn("{task.description:>22}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}

    async def play(self) -> Outcome:
        """Take all steps. Raises `DemoError` with the end of the nodes' logs, and leaves nothing behind."""
        with self.progress:
            try:
                await self.set_up()
                await self.replay()
                await self.gather()
                outcome = await self.count()
                await self.stop()
                return outcome
            except DemoError as error:
                raise DemoError(f"{error}{self.tail()}") from error
            finally:
                await self.tear_down()

    async def set_up(self) -> None:
        """Start all participants and wait until they are ready."""
        raise NotImplementedError

    async def replay(self) -> None:
        """Let the devices send everything, and kill what is to be killed."""
        raise NotImplementedError

    async def gather(self) -> None:
        """Wait until all consumers have caught up."""
        raise NotImplementedError

    async def count(self) -> Outcome:
        """Compare the acknowledged readings with those of each consumer."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop what runs with SIGTERM. Raises `DemoError` when it does not end cleanly."""
        raise NotImplementedError

    async def tear_down(self) -> None:
        """End all participants. Raises nothing, so that an earlier error is kept."""
        raise NotImplementedError

    def tail(self) -> str:
        """Return the ends of the nodes' logs."""
        raise NotImplementedError

    def _completed(self) -> Iterable[int]:
        """How many readings each party of a progress bar has, in the order of the bars."""
        raise NotImplementedError

    def _print(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self.progress.console.print(f"[dim]{elapsed:5.1f} s[/]  {text}", highlight=False)

    async def _start_fleet(self, ports: Sequence[int], *flags: str) -> None:
        """Start the devices, which connect to the nodes with these MQTT ports."""
        deadline = self._options.seconds * _GIVE_UP_FACTOR + SILENCE_SECONDS
        arguments = [
            *(f"--port={port}" for port in ports),
            f"--readings={self._options.readings}",
            f"--seconds={self._options.seconds}",
            f"--deadline={deadline}",
        ]
        await self._fleet.start("sluice.demo.fleet", [*arguments, *flags])

    async def _fleet_ready(self) -> int:
        """Wait until all devices are connected. Return their number."""
        ready = await self._fleet.message(SILENCE_SECONDS)
        self._planned = number(ready, "planned")
        return number(ready, "ready")

    def _add_bars(self, *names: str) -> None:
        for name in names:
            self._bars[name] = self.progress.add_task(name, total=self._planned)

    async def _replay(self, *steps: tuple[float, Callable[[], Awaitable[None]]]) -> None:
        """Let the devices send. Each step is taken when a share (0..1) of the readings is acknowledged."""
        acts = deque(steps)
        await self._fleet.say("go")
        is_stopping = False
        while True:
            line = await self._fleet.message(SILENCE_SECONDS)
            self._figures = {name: value for name, value in line.items() if type(value) is int}
            self._show_progress()
            if isinstance(ranges := line.get("acknowledged"), dict):
                self._acknowledged = {device: from_ranges(pairs) for device, pairs in ranges.items()}
                self._last_line = line
                break
            if acts and self._figures["acked"] >= acts[0][0] * self._planned:
                await acts.popleft()[1]()
            if not acts and self._figures["acked"] == self._planned and not is_stopping:
                await self._fleet.say("enough")
                is_stopping = True
        if not line["complete"]:
            missing = self._planned - self._figures["acked"]
            raise DemoError(f"the devices gave up with {missing:,} readings not acknowledged{self._fleet.tail()}")
        if acts:
            raise DemoError("the devices gave up before every step of the scenario was done")
        self._print(f"all {self._figures['acked']:,} readings are acknowledged")

    async def _caught_up(self, who: str, tally: Tally) -> None:
        acked = self._figures["acked"]
        try:
            await self._until(f"{who} to catch up", lambda: tally.distinct >= acked)
        except DemoError:
            self._print(f"[bold red]{who} has {tally.distinct:,} of {acked:,}[/] after {CATCH_UP_SECONDS} s")

    async def _until(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait for a condition. Raises `DemoError` after a time limit, or when a background task fails."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while not reached():
            self._raise_failures()
            if time.monotonic() > deadline:
                raise DemoError(f"waited {CATCH_UP_SECONDS} s for {what}")
            self._show_progress()
            await asyncio.sleep(_POLL)

    def _raise_failures(self) -> None:
        for task in self._background:
            if task.done() and (error := task.exception()) is not None:
                raise DemoError(str(error)) from error

    def _show_progress(self) -> None:
        self._raise_failures()
        for bar, completed in zip(self._bars.values(), self._completed(), strict=True):
            self.progress.update(bar, completed=completed)

    async def _end_background(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)


def number(line: dict[str, object], name: str) -> int:
    """Return a figure of a line that a child process wrote; 0 without it."""
    value = line.get(name)
    return int(value) if isinstance(value, int) else 0
