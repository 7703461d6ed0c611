"""The scenario of the demo: the steps in order, with a limit on every wait."""

import asyncio
import signal
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from paho.mqtt.enums import MQTTProtocolVersion
from pyarrow import dataset
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from sluice.demo.node import NodeProcess
from sluice.demo.process import ChildProcess, DemoError
from sluice.demo.readings import PARENT
from sluice.demo.service import CloudService
from sluice.demo.subscriber import Operator, PersistentSubscriber
from sluice.demo.summary import ConsumerResult, Outcome, print_summary
from sluice.demo.tally import Tally, from_ranges

_SPARK_SECONDS: Final = 180  # for its start on a busy machine
_SILENCE_SECONDS: Final = 30  # the longest silence of the fleet or Spark
_CATCH_UP_SECONDS: Final = 180
_GIVE_UP_FACTOR: Final = 3  # the fleet gives up after this many times the replay's length
_CLOSE_SECONDS: Final = 5  # for Spark to stop its JVM
_POLL: Final = 0.1
_OFFLINE: Final = "offline-device"
_DASHBOARD: Final = "dashboard"
_OPERATOR: Final = "operator"
_ALERTS: Final = "alerts"  # where the Spark job publishes
_COMMANDED: Final = "cgm-01"


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


def run(options: DemoOptions) -> int:
    """Run the scenario and print its summary. Return exit code 0 when no acknowledged reading is missing, else 1."""
    console = Console()
    try:
        outcome = asyncio.run(_play(options, console))
    except DemoError as error:
        console.print(f"[bold red]The demo failed:[/] {error}", highlight=False)
        console.print(f"Logs and data: {options.folder}", highlight=False, soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped")
        return 130
    print_summary(outcome, console)
    return 0 if outcome.complete else 1


async def _play(options: DemoOptions, console: Console) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    scenario = Scenario(options, console)
    with scenario.progress:
        try:
            await scenario.set_up()
            await scenario.replay()
            await scenario.gather()
            outcome = await scenario.count()
            await scenario.stop_node()
            return outcome
        except DemoError as error:
            raise DemoError(f"{error}{scenario.node.tail()}") from error
        finally:
            await scenario.tear_down()


class Scenario:
    """The participants of the demo and their progress."""

    def __init__(self, options: DemoOptions, console: Console) -> None:
        folder = self._folder = options.folder
        self._options = options
        self._began = time.monotonic()
        self.node = NodeProcess(folder / "node", folder / "node.log")
        self._fleet = ChildProcess("the fleet of devices", folder / "devices.log")
        self._spark = ChildProcess("the Spark job", folder / "spark.log")
        self._dashboard = PersistentSubscriber(_DASHBOARD, f"{PARENT}/#", version=MQTTProtocolVersion.MQTTv5)
        self._offline = PersistentSubscriber(_OFFLINE, f"{PARENT}/#", version=MQTTProtocolVersion.MQTTv311)
        self._operator = Operator(_OPERATOR, f"{_ALERTS}/#", version=MQTTProtocolVersion.MQTTv5)
        self._service: CloudService | None = None
        self._background: list[asyncio.Task[None]] = []
        self._planned = 0
        self._figures: dict[str, int] = {"sent": 0, "acked": 0, "resent": 0, "connects": 0}
        self._acknowledged: dict[str, set[int]] = {}
        self._analysis: dict[str, int] = {"rows": 0}
        self._killed_at = self._back_at = 0.0  # time.time()
        self._start_seconds = self._offline_seconds = 0.0
        self.progress = Progress(
            TextColumn("{task.description:>22}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}

    def _print(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self.progress.console.print(f"[dim]{elapsed:5.1f} s[/]  {text}", highlight=False)

    async def set_up(self) -> None:
        """Start all participants and wait until they are ready."""
        took = await self.node.start()
        ports = self.node.ports
        self._print(f"node ready in {took:.1f} s: MQTT {ports.mqtt}, gRPC {ports.grpc}, HTTP {ports.http}")
        self._print("starting Spark, 40 devices, a cloud service and a dashboard")
        endpoint = f"127.0.0.1:{ports.grpc}"
        await self._spark.start("sluice.demo.analytics", ["--endpoint", endpoint, "--folder", str(self._folder)])
        deadline = self._options.seconds * _GIVE_UP_FACTOR + _SILENCE_SECONDS
        await self._fleet.start(
            "sluice.demo.fleet",
            [
                f"--port={ports.mqtt}",
                f"--readings={self._options.readings}",
                f"--seconds={self._options.seconds}",
                f"--deadline={deadline}",
            ],
        )
        self._service = CloudService(endpoint)
        self._background.append(asyncio.create_task(self._service.consume()))
        await asyncio.to_thread(self._offline.connect, ports.mqtt)
        await asyncio.to_thread(self._offline.disconnect)
        self._print(f"{_OFFLINE} has subscribed to {PARENT}/# and disconnected: the node keeps its session")
        await asyncio.to_thread(self._dashboard.connect, ports.mqtt)
        await asyncio.to_thread(self._operator.connect, ports.mqtt)
        ready = await self._fleet.message(_SILENCE_SECONDS)
        self._planned = _number(ready, "planned")
        starting = self.progress.add_task("Spark starts", total=None)
        await self._spark.message(_SPARK_SECONDS)
        self.progress.remove_task(starting)
        self._print(f"{ready['ready']} devices connected and Spark is up: replaying {self._planned:,} real readings")
        for name in ("devices: acknowledged", "dashboard", "cloud service", "Spark"):
            self._bars[name] = self.progress.add_task(name, total=self._planned)
        self._background.append(asyncio.create_task(self._watch_spark()))

    async def replay(self) -> None:
        """Let the devices send; meanwhile command a device and kill the node."""
        acts: deque[tuple[float, Callable[[], Awaitable[None]]]] = deque(
            [(0.2, self._command), (0.5, self._kill_node), (0.75, self._command)]
        )
        await self._fleet.say("go")
        is_stopping = False
        while True:
            line = await self._fleet.message(_SILENCE_SECONDS)
            self._figures = {name: value for name, value in line.items() if type(value) is int}
            self._show_progress()
            if isinstance(ranges := line.get("acknowledged"), dict):
                self._acknowledged = {device: from_ranges(pairs) for device, pairs in ranges.items()}
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

    async def gather(self) -> None:
        """Wait until all consumers have caught up, reconnect the offline device, and let Spark finish."""
        await self._spark.say("finish")
        assert self._service is not None
        await self._caught_up("the dashboard", self._dashboard.tally)
        await self._caught_up("the cloud service", self._service.tally)
        began = time.monotonic()
        await asyncio.to_thread(self._offline.connect, self.node.ports.mqtt)
        await self._caught_up(_OFFLINE, self._offline.tally)
        self._offline_seconds = time.monotonic() - began
        self._print(
            f"{_OFFLINE} reconnected and got {self._offline.tally.distinct:,} readings in {self._offline_seconds:.1f} s"
        )
        self._print("Spark finishes its batches and draws the chart")
        await self._until("Spark to finish", self._background[-1].done)
        self._show_progress()
        alerts = self._analysis.get("alerts", 0)
        await self._until("the operator to get the alerts", lambda: len(self._operator.alerts) >= alerts)

    async def count(self) -> Outcome:
        """Compare the acknowledged readings with those of each consumer, by device and sequence number."""
        assert self._service is not None
        parquet = await asyncio.to_thread(_tally_parquet, self._folder / "readings")
        parties = (
            ("dashboard", "MQTT 5", self._dashboard.tally, True),
            ("cloud service", "gRPC group", self._service.tally, False),
            ("offline device", "MQTT 3.1.1", self._offline.tally, True),
            ("Spark", "Parquet", parquet, False),
        )
        received = [
            ConsumerResult(name, how, tally, tally.missing(self._acknowledged), ordered)
            for name, how, tally, ordered in parties
        ]
        outage = self._killed_at, self._back_at
        steady = [late for sent, late in self._dashboard.latencies if not _touches(sent, sent + late, outage)]
        return Outcome(
            sent=self._figures["sent"],
            acknowledged=self._figures["acked"],
            resent=self._figures["resent"],
            received=received,
            latencies=steady,
            worst_latency=max((late for _, late in self._dashboard.latencies), default=0.0),
            answers=self._service.answers,
            outage=self._back_at - self._killed_at,
            restart=self._start_seconds,
            offline_seconds=self._offline_seconds,
            analysis=self._analysis,
            alerts_received=self._operator.received,
            alerts_distinct=len(self._operator.alerts),
            disk_bytes=self.node.disk_bytes(),
            seconds=time.monotonic() - self._began,
            folder=self._folder,
        )

    async def stop_node(self) -> None:
        """Stop the node with SIGTERM. Raises `DemoError` when it does not end cleanly."""
        if (code := await self.node.stop()) != 0:
            raise DemoError(f"the node ended with exit code {code} after SIGTERM")

    async def tear_down(self) -> None:
        """End all participants, the node last. Raises nothing, so that an earlier error is kept."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for subscriber in (self._dashboard, self._offline, self._operator):
            await asyncio.to_thread(subscriber.disconnect)
        for child in (self._fleet, self._spark):
            await child.close(_CLOSE_SECONDS)
        await self.node.ensure_stopped()

    async def _command(self) -> None:
        assert self._service is not None
        await self._service.command(_COMMANDED)
        self._print(
            f"the cloud service commanded {_COMMANDED} and got an answer in {self._service.answers[-1] * 1000:.0f} ms"
        )

    async def _kill_node(self) -> None:
        self._print("killing the node with [bold red]kill -9[/]")
        self._killed_at = time.time()
        await self.node.kill()
        self._start_seconds = await self.node.start()
        self._back_at = time.time()
        self._print(f"the node is back: ready {self._start_seconds:.1f} s after its start, with the same log")
        connects = self._dashboard.connects
        await self._until("the dashboard to reconnect", lambda: self._dashboard.connects > connects)
        self._back_at = time.time()

    async def _watch_spark(self) -> None:
        """Keep the newest figures of the Spark job until it has finished."""
        while "windows" not in self._analysis:
            line = await self._spark.message(_CATCH_UP_SECONDS)
            self._analysis = {name: _number(line, name) for name in line}

    async def _caught_up(self, who: str, tally: Tally) -> None:
        acked = self._figures["acked"]
        try:
            await self._until(f"{who} to catch up", lambda: tally.distinct >= acked)
        except DemoError:
            self._print(f"[bold red]{who} has {tally.distinct:,} of {acked:,}[/] after {_CATCH_UP_SECONDS} s")

    async def _until(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait for a condition. Raises `DemoError` after a time limit, or when a background task fails."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while not reached():
            self._raise_failures()
            if time.monotonic() > deadline:
                raise DemoError(f"waited {_CATCH_UP_SECONDS} s for {what}")
            self._show_progress()
            await asyncio.sleep(_POLL)

    def _raise_failures(self) -> None:
        for task in self._background:
            if task.done() and (error := task.exception()) is not None:
                raise DemoError(str(error)) from error

    def _show_progress(self) -> None:
        self._raise_failures()
        assert self._service is not None
        done = (
            self._figures["acked"],
            self._dashboard.tally.distinct,
            self._service.tally.distinct,
            min(self._analysis["rows"], self._planned),
        )
        for bar, completed in zip(self._bars.values(), done, strict=True):
            self.progress.update(bar, completed=completed)


def _number(line: dict[str, object], name: str) -> int:
    value = line.get(name)
    return int(value) if isinstance(value, int) else 0


def _touches(begin: float, end: float, outage: tuple[float, float]) -> bool:
    return begin < outage[1] and end > outage[0]


def _tally_parquet(folder: Path) -> Tally:
    """Count the readings in the Parquet files that Spark has written, without Spark."""
    tally = Tally()
    table = dataset.dataset(folder, format="parquet").to_table(columns=["device", "seq", "offset"]).sort_by("offset")
    for device, seq in zip(table["device"].to_pylist(), table["seq"].to_pylist(), strict=True):
        if device is not None and seq is not None:
            tally.add(device, seq)
    return tally
