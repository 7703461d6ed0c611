"""The demo of a cluster: three nodes with one log, of which the one that leads is killed under load.

Devices publish to all nodes, with QoS 1 and QoS 2. A subscriber at each node and a cloud service listen. Halfway
through, the leader is killed with all its processes, and later it comes back as a follower. At the end the readings are
counted, and the views of all nodes are compared.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from paho.mqtt.enums import MQTTProtocolVersion
from rich.console import Console

from gateway.management.proto import management_pb2 as pb
from sluice.commands.node.cluster import status_of
from sluice.console.command import CommandError
from sluice.demo.cluster_summary import ClusterOutcome, print_summary
from sluice.demo.engine_servers import NatsServers, SeaweedServers, ServerMissing
from sluice.demo.fleet import exactly_once_devices
from sluice.demo.node import NodeProcess
from sluice.demo.options import add_arguments
from sluice.demo.ports import lasting_ports
from sluice.demo.process import DemoError
from sluice.demo.readings import PARENT, load_fleet
from sluice.demo.replay import CATCH_UP_SECONDS, DemoOptions, Replay, exit_code
from sluice.demo.service import CloudService
from sluice.demo.subscriber import PersistentSubscriber
from sluice.demo.summary import ConsumerResult
from sluice.node.http_link import HttpLink

_NODES: Final = 3
_LEADER_TIMEOUT_S: Final = 3
_EXACTLY_ONCE_EVERY: Final = 4  # so many devices publish with QoS 2
_LOOK_SECONDS: Final = 0.1  # between two questions who leads
_ENGINES: Final = {"seaweed": "SeaweedFS", "nats": "NATS JetStream", "file": "a folder"}


class ClusterNode(NodeProcess):
    """One node of the cluster: a store and a gateway."""

    def __init__(self, folder: Path, name: str, log: str, options: dict[str, str | int | float | bool]) -> None:
        """log: the address of the shared log. options: of its engine."""
        (port,) = lasting_ports(1)
        config = folder / f"{name}.toml"
        lines = [
            "[cluster]",
            f'name = "{name}"',
            f"log = {json.dumps(log)}",
            f'listen = "127.0.0.1:{port}"',
            f"leader_timeout_s = {_LEADER_TIMEOUT_S}",
            "[cluster.options]",
            *(f"{option} = {json.dumps(value)}" for option, value in options.items()),
        ]
        config.write_text("\n".join([*lines, ""]), encoding="utf-8")
        super().__init__(folder / name, folder / f"{name}.log", name, ["--config", str(config)])

    def status(self, **question: Any) -> dict[str, Any]:
        """Return what `sluice cluster status` says; nothing if the node does not answer."""
        try:
            link = HttpLink.find(self.data_dir)
            if link is None:
                return {}
            try:
                return status_of(link.call("GetCluster", pb.GetClusterRequest(**question), pb.ClusterStatus))
            finally:
                link.close()
        except CommandError:
            return {}


class ClusterScenario(Replay[ClusterOutcome]):
    """The participants of the demo of a cluster and their progress."""

    def __init__(self, options: DemoOptions, engine: str, console: Console) -> None:
        super().__init__(options, console)
        self._engine = engine
        self._servers: NatsServers | SeaweedServers | None = None
        self._nodes: list[ClusterNode] = []
        self._subscribers: list[PersistentSubscriber] = []
        self._service = CloudService([])
        self._leader = self._killed = self._successor = 0  # indexes of nodes
        self._replay_at = self._killed_at = self._back_at = 0.0  # time.time()

    async def set_up(self) -> None:
        """Start all participants and wait until they are ready."""
        log, options = await self._start_engine()
        names = [f"n{number}" for number in range(1, _NODES + 1)]
        self._nodes = [ClusterNode(self._folder, name, log, options) for name in names]
        took = await asyncio.gather(*(node.start() for node in self._nodes))
        await self._lead(self._nodes)
        self._print(f"{_NODES} nodes ready in {max(took):.1f} s, {self._nodes[self._leader].name} leads")
        ports = [node.ports.mqtt for node in self._nodes]
        await self._start_fleet(ports, f"--exactly-once-every={_EXACTLY_ONCE_EVERY}")
        endpoints = [f"127.0.0.1:{node.ports.grpc}" for node in self._nodes]
        self._service.endpoints = endpoints[self._leader :] + endpoints[: self._leader]
        self._background.append(asyncio.create_task(self._service.consume()))
        for number, node in enumerate(self._nodes):
            subscriber = PersistentSubscriber(
                f"dashboard-{node.name}", f"{PARENT}/#", version=MQTTProtocolVersion.MQTTv5, qos=2
            )
            self._subscribers.append(subscriber)
            await asyncio.to_thread(subscriber.connect, *ports[number:], *ports[:number])
        devices = await self._fleet_ready()
        self._print(f"{devices} devices connected to all nodes: replaying {self._planned:,} real readings")
        self._add_bars(
            "devices: acknowledged", *(f"subscriber at {node.name}" for node in self._nodes), "cloud service"
        )

    async def replay(self) -> None:
        """Let the devices send; meanwhile kill the leader and start it again.

        It starts when more is acknowledged than the devices of the other nodes have, so those of the killed node must
        have gone there.
        """
        self._replay_at = time.time()
        await self._replay((0.5, self._kill_leader), (0.9, self._start_killed))

    async def gather(self) -> None:
        """Wait until all consumers have caught up."""
        await self._until("another node to lead", self._background[-1].done)
        for node, subscriber in zip(self._nodes, self._subscribers, strict=True):
            await self._caught_up(f"the subscriber at {node.name}", subscriber.tally)
        await self._caught_up("the cloud service", self._service.tally)

    async def count(self) -> ClusterOutcome:
        """Compare the acknowledged readings with those of each consumer, and the views of the nodes."""
        fleet = await asyncio.to_thread(load_fleet, self._options.readings)
        exactly_once = exactly_once_devices(fleet, _EXACTLY_ONCE_EVERY)
        received = [
            ConsumerResult(
                f"subscriber at {node.name}",
                "MQTT 5, QoS 2",
                each.tally,
                each.tally.missing(self._acknowledged),
                ordered=True,
                twice=sum(each.tally.repeats[device] for device in exactly_once),
            )
            for node, each in zip(self._nodes, self._subscribers, strict=True)
        ]
        tally = self._service.tally
        received.append(ConsumerResult("cloud service", "gRPC group", tally, tally.missing(self._acknowledged), False))
        survivor = self._subscribers[self._successor]
        return ClusterOutcome(
            engine=_ENGINES[self._engine],
            sent=self._figures["sent"],
            acknowledged=self._figures["acked"],
            resent=self._figures["resent"],
            received=received,
            exactly_once=sum(len(self._acknowledged[device]) for device in exactly_once),
            names=[node.name for node in self._nodes],
            moments=[{at / 100: count for at, count in node} for node in self._last_line["moments"]],
            delivered=[sent + late for sent, late in survivor.latencies],
            consumed=self._service.arrivals,
            leader_timeout=_LEADER_TIMEOUT_S,
            killed=self._killed,
            successor=self._successor,
            began=self._replay_at,
            killed_at=self._killed_at,
            back_at=self._back_at,
            views=await self._compare_views(),
            seconds=time.monotonic() - self._began,
            folder=self._folder,
        )

    async def stop(self) -> None:
        """Stop the nodes with SIGTERM. Raises `DemoError` when one does not end cleanly."""
        for node in self._nodes:
            if (code := await node.stop()) != 0:
                raise DemoError(f"{node.name} ended with exit code {code} after SIGTERM{node.tail()}")

    async def tear_down(self) -> None:
        """End all participants, the engine last. Raises nothing, so that an earlier error is kept."""
        await self._end_background()
        for subscriber in self._subscribers:
            await asyncio.to_thread(subscriber.disconnect)
        await self._fleet.kill()
        await asyncio.gather(*(node.ensure_stopped() for node in self._nodes))
        if self._servers is not None:
            await asyncio.to_thread(self._servers.stop)

    def tail(self) -> str:
        return "".join(node.tail() for node in self._nodes)

    def _completed(self) -> tuple[int, ...]:
        received = (each.tally.distinct for each in self._subscribers)
        return (self._figures["acked"], *received, self._service.tally.distinct)

    async def _start_engine(self) -> tuple[str, dict[str, str | int | float | bool]]:
        """Return the address of the shared log and the options of its engine."""
        if self._engine == "file":
            return f"file://{self._folder}/shared", {}
        began = time.monotonic()
        self._print(f"starting {_ENGINES[self._engine]}")
        folder = self._folder / self._engine
        try:
            self._servers = NatsServers(folder) if self._engine == "nats" else SeaweedServers(folder)
            await asyncio.to_thread(self._servers.start)
        except (RuntimeError, ServerMissing) as error:
            raise DemoError(str(error)) from error
        self._print(f"{_ENGINES[self._engine]} ready in {time.monotonic() - began:.1f} s")
        return self._servers.url("log"), self._servers.options

    async def _lead(self, nodes: Sequence[ClusterNode]) -> None:
        """Wait until one of these nodes leads, as it says itself. Raises `DemoError`."""
        roles: list[object] = []

        async def ask() -> bool:
            roles[:] = [state.get("role") for state in await self._states(nodes)]
            return "leader" in roles

        await self._ask_until("a node to lead", ask)
        self._leader = self._nodes.index(nodes[roles.index("leader")])

    async def _states(self, nodes: Sequence[ClusterNode], **question: object) -> list[dict[str, Any]]:
        return await asyncio.gather(*(asyncio.to_thread(node.status, **question) for node in nodes))

    async def _ask_until(self, what: str, ask: Callable[[], Awaitable[bool]]) -> None:
        """Ask until the answer is yes. Raises `DemoError` after a time limit, or when a background task fails."""
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while not await ask():
                    self._raise_failures()
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise DemoError(f"waited {CATCH_UP_SECONDS} s for {what}") from None

    async def _kill_leader(self) -> None:
        await self._lead(self._nodes)
        self._killed = self._leader
        node = self._nodes[self._killed]
        self._print(f"killing {node.name}, which leads, with [bold red]kill -9[/]")
        self._killed_at = time.time()
        await node.kill()
        self._background.append(asyncio.create_task(self._watch_failover()))

    async def _watch_failover(self) -> None:
        others = [node for number, node in enumerate(self._nodes) if number != self._killed]
        await self._lead(others)
        self._successor = self._leader
        seconds = time.time() - self._killed_at
        self._print(f"{self._nodes[self._successor].name} leads {seconds:.1f} s after the kill")

    async def _start_killed(self) -> None:
        node = self._nodes[self._killed]
        took = await node.start()
        self._back_at = time.time()
        self._print(f"{node.name} is back: ready {took:.1f} s after its start")

    async def _compare_views(self) -> list[dict[str, Any]]:
        """Return the state of each node, with digests of their views at one position."""
        position = max(state.get("position", 0) for state in await self._states(self._nodes))

        async def ask() -> bool:
            return all(state.get("position", -1) >= position for state in await self._states(self._nodes))

        await self._ask_until(f"all nodes to have the log up to {position:,}", ask)
        states = await self._states(self._nodes, digest=True, position=position)
        self._print("compared the views of the nodes")
        return states


def run(options: DemoOptions, engine: str, picture: Path | None) -> int:
    """Run the scenario, print its summary and draw its picture. Return exit code 0 when nothing is missing, else 1."""
    console = Console()
    return exit_code(_play(options, engine, picture, console), options.folder, console)


async def _play(options: DemoOptions, engine: str, picture: Path | None, console: Console) -> bool:
    scenario = ClusterScenario(options, engine, console)
    outcome = await scenario.play()
    picture = picture or options.folder / "failover.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(outcome.picture(), encoding="utf-8")
    print_summary(outcome, picture, console)
    return outcome.complete


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sluice.demo.cluster", description="run three nodes with one log and kill the one that leads"
    )
    text = "where the log is: SeaweedFS or NATS on this machine, or a folder (default: %(default)s)"
    parser.add_argument("--engine", choices=sorted(_ENGINES), default="seaweed", help=text)
    add_arguments(parser)
    text = "draw throughput over time into this SVG (default: failover.svg in the folder of the run)"
    parser.add_argument("--picture", type=Path, metavar="FILE", help=text)
    arguments = parser.parse_args()
    options = DemoOptions.of(arguments.data_dir, arguments.readings, arguments.seconds)
    return run(options, arguments.engine, arguments.picture)


if __name__ == "__main__":
    sys.exit(main())
