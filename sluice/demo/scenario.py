"""The scenario of the demo: the steps in order, with a limit on every wait."""

import asyncio
import time
from pathlib import Path
from typing import Final

from paho.mqtt.enums import MQTTProtocolVersion
from pyarrow import dataset
from rich.console import Console

from sluice.demo.integration import Integration
from sluice.demo.node import NodeProcess
from sluice.demo.process import ChildProcess, DemoError
from sluice.demo.readings import PARENT
from sluice.demo.replay import DemoOptions, Replay, exit_code, number
from sluice.demo.service import CloudService
from sluice.demo.subscriber import Operator, PersistentSubscriber
from sluice.demo.summary import ConsumerResult, Outcome, print_summary
from sluice.demo.tally import Tally

_SPARK_SECONDS: Final = 180  # for its start on a busy machine, and between two of its lines
_CLOSE_SECONDS: Final = 5  # for Spark to stop its JVM
_OFFLINE: Final = "offline-device"
_DASHBOARD: Final = "dashboard"
_OPERATOR: Final = "operator"
_ALERTS: Final = "alerts"  # where the Spark job publishes
_COMMANDED: Final = "cgm-01"


def run(options: DemoOptions) -> int:
    """Run the scenario and print its summary. Return exit code 0 when no acknowledged reading is missing, else 1."""
    console = Console()
    return exit_code(_play(options, console), options.folder, console)


async def _play(options: DemoOptions, console: Console) -> bool:
    scenario = Scenario(options, console)
    outcome = await scenario.play()
    print_summary(outcome, console)
    return outcome.complete


class Scenario(Replay[Outcome]):
    """The participants of the demo and their progress."""

    def __init__(self, options: DemoOptions, console: Console) -> None:
        super().__init__(options, console)
        folder = self._folder
        self._integration = Integration(folder / "node", folder, _ALERTS)
        self._node = NodeProcess(folder / "node", folder / "node.log", settings=self._integration.environment)
        self._spark = ChildProcess("the Spark job", folder / "spark.log")
        self._dashboard = PersistentSubscriber(_DASHBOARD, f"{PARENT}/#", version=MQTTProtocolVersion.MQTTv5)
        self._offline = PersistentSubscriber(_OFFLINE, f"{PARENT}/#", version=MQTTProtocolVersion.MQTTv311)
        self._operator = Operator(_OPERATOR, f"{_ALERTS}/#", version=MQTTProtocolVersion.MQTTv5)
        self._service: CloudService | None = None
        self._analysis: dict[str, int] = {"rows": 0}
        self._killed_at = self._back_at = 0.0  # time.time()
        self._start_seconds = self._offline_seconds = 0.0

    async def set_up(self) -> None:
        """Start all participants and wait until they are ready."""
        took = await self._node.start()
        ports = self._node.ports
        self._print(f"node ready in {took:.1f} s: MQTT {ports.mqtt}, gRPC {ports.grpc}, HTTP {ports.http}")
        await self._integration.set_up()
        self._print("alerts have an event rule that calls a webhook, and a connector that fills a SQLite table")
        self._print("starting Spark, 40 devices, a cloud service and a dashboard")
        endpoint = f"127.0.0.1:{ports.grpc}"
        await self._spark.start("sluice.demo.analytics", ["--endpoint", endpoint, "--folder", str(self._folder)])
        await self._start_fleet([ports.mqtt])
        self._service = CloudService([endpoint])
        self._background.append(asyncio.create_task(self._service.consume()))
        await asyncio.to_thread(self._offline.connect, ports.mqtt)
        await asyncio.to_thread(self._offline.disconnect)
        self._print(f"{_OFFLINE} has subscribed to {PARENT}/# and disconnected: the node keeps its session")
        await asyncio.to_thread(self._dashboard.connect, ports.mqtt)
        await asyncio.to_thread(self._operator.connect, ports.mqtt)
        devices = await self._fleet_ready()
        starting = self.progress.add_task("Spark starts", total=None)
        await self._spark.message(_SPARK_SECONDS)
        self.progress.remove_task(starting)
        self._print(f"{devices} devices connected and Spark is up: replaying {self._planned:,} real readings")
        self._add_bars("devices: acknowledged", "dashboard", "cloud service", "Spark")
        self._background.append(asyncio.create_task(self._watch_spark()))

    async def replay(self) -> None:
        """Let the devices send; meanwhile command a device and kill the node."""
        await self._replay((0.2, self._command), (0.5, self._kill_node), (0.75, self._command))

    async def gather(self) -> None:
        """Wait until all consumers have caught up, reconnect the offline device, and let Spark finish."""
        await self._spark.say("finish")
        assert self._service is not None
        await self._caught_up("the dashboard", self._dashboard.tally)
        await self._caught_up("the cloud service", self._service.tally)
        began = time.monotonic()
        await asyncio.to_thread(self._offline.connect, self._node.ports.mqtt)
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
        await self._until("the webhook to get the alerts", lambda: len(self._integration.webhook.ids) >= alerts)
        await self._until("the connector to store the alerts", lambda: self._integration.rows()[0] >= alerts)

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
            webhook_received=self._integration.webhook.received,
            webhook_distinct=len(self._integration.webhook.ids),
            rows=self._integration.rows(),
            disk_bytes=self._node.disk_bytes(),
            seconds=time.monotonic() - self._began,
            folder=self._folder,
        )

    async def stop(self) -> None:
        """Stop the node with SIGTERM. Raises `DemoError` when it does not end cleanly."""
        if (code := await self._node.stop()) != 0:
            raise DemoError(f"the node ended with exit code {code} after SIGTERM")

    async def tear_down(self) -> None:
        """End all participants, the node last. Raises nothing, so that an earlier error is kept."""
        await self._end_background()
        for subscriber in (self._dashboard, self._offline, self._operator):
            await asyncio.to_thread(subscriber.disconnect)
        await self._integration.webhook.stop()
        for child in (self._fleet, self._spark):
            await child.close(_CLOSE_SECONDS)
        await self._node.ensure_stopped()

    def tail(self) -> str:
        return self._node.tail()

    async def _command(self) -> None:
        assert self._service is not None
        await self._service.command(_COMMANDED)
        self._print(
            f"the cloud service commanded {_COMMANDED} and got an answer in {self._service.answers[-1] * 1000:.0f} ms"
        )

    async def _kill_node(self) -> None:
        self._print("killing the node with [bold red]kill -9[/]")
        self._killed_at = time.time()
        await self._node.kill()
        self._start_seconds = await self._node.start()
        self._back_at = time.time()
        self._print(f"the node is back: ready {self._start_seconds:.1f} s after its start, with the same log")
        connects = self._dashboard.connects
        await self._until("the dashboard to reconnect", lambda: self._dashboard.connects > connects)
        self._back_at = time.time()

    async def _watch_spark(self) -> None:
        """Keep the newest figures of the Spark job until it has finished."""
        while "windows" not in self._analysis:
            line = await self._spark.message(_SPARK_SECONDS)
            self._analysis = {name: number(line, name) for name in line}

    def _completed(self) -> tuple[int, ...]:
        assert self._service is not None
        return (
            self._figures["acked"],
            self._dashboard.tally.distinct,
            self._service.tally.distinct,
            min(self._analysis["rows"], self._planned),
        )


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
