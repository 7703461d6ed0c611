"""A node: the store, the notifier and the fronts of one process, put together, started and stopped."""

import asyncio
import gc
import logging
import signal
import sys
from dataclasses import dataclass, field

import uvloop

from gateway.admin import AdminFront
from gateway.config import Config
from gateway.counters import Counters
from gateway.devices import Devices
from gateway.http import HttpFront
from gateway.keeping import Keeping
from gateway.proxy import address_text
from gateway.rpc import RpcServer
from gateway.tls import TlsError
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError

log = logging.getLogger(__name__)

_STOP_GRACE = 2.0  # seconds for gRPC calls under way
# Allocations between looks for garbage cycles. The flow of messages makes none, and Python's default of 700
# costs a tenth of the CPU with a thousand connections. Each look holds the loop up: 10,000 objects are a few ms.
_GC_THRESHOLDS = (10_000, 10, 100)


@dataclass(slots=True, frozen=True)
class Ports:
    """Where a node listens."""

    mqtt: int  # -1: nowhere
    ws: int
    grpc: int
    http: int
    addresses: dict[str, str] = field(default_factory=dict)  # of the MQTT listeners of the configuration, by name


class Node:
    """One running node, both roles embedded: devices, services and the store in one process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()
        self._engine: Engine | None = None

    async def start(self) -> Ports:
        """Open the store and listen. Raises StoreError, TlsError or OSError; nothing stays open then."""
        config = self.config
        settings = store_config(config)
        self._engine = engine = await Engine.open(config.data_dir, settings)
        self._devices = devices = Devices(engine, config, self.counters)
        self._router, self._sessions, self._front = devices.router, devices.sessions, devices.front
        self._keeping = Keeping(engine, self._sessions.wills, self._sessions.held)
        self._rpc = RpcServer(engine, settings=settings, fifo_groups=config.grpc.fifo_groups)
        self._http = HttpFront(engine, lambda: {"": devices.figures()}, lambda: devices.front.gates)
        self._admin = AdminFront(engine, self._sessions, config.data_dir)
        try:
            await self._admin.start()
            await self._keeping.see_to(_everybody)
            self._keeping.start()
            await devices.start(_never)
            grpc = await self._rpc.start(config.host, config.grpc.port)
            http = await self._http.start(config.host, config.http.port)
            if not self._http.is_local:
                places = [address_text(config.host, port) for port in (grpc, http)]
                log.warning("gRPC at %s and HTTP at %s take anybody, whatever mqtt.auth says: see host", *places)
            addresses = await devices.listen()
            mqtt, ws = (int(addresses.pop(name, "-1").rpartition(":")[2]) for name in ("mqtt", "ws"))
            self.ports = Ports(mqtt, ws, grpc, http, addresses)
            return self.ports
        except BaseException:
            await self.stop()
            raise

    async def reload(self) -> None:
        """Read the certificates again."""
        await self._devices.reload()

    async def stop(self) -> None:
        """Stop in the order of the flow: fronts, sessions, store. What was accepted is committed."""
        if self._engine is None:
            return
        await self._keeping.stop()
        await self._devices.stop()
        await self._rpc.stop(_STOP_GRACE)
        await self._http.stop()
        await self._admin.stop()
        await self._engine.close()
        self._engine = None


def store_config(config: Config) -> StoreConfig:
    """What the store of a node is told."""
    return StoreConfig(
        policy=config.store.policy,
        interval_ms=config.store.interval_ms,
        segment_size=config.store.segment_size,
        partitions=config.store.partitions,
        retention_age_s=config.store.retention_age_s,
        retention_parents={name.encode(): age_s for name, age_s in config.store.retention_parents.items()},
        retention_bytes=config.store.retention_bytes,
        serve_damaged=config.store.serve_damaged,
        transaction_check_s=config.store.transaction_check_s,
        transaction_checks=config.store.transaction_checks,
        lease_s=config.store.lease_ms / 1000,
        max_deliveries=config.store.max_deliveries,
        retry_delays_s=tuple(config.store.retry_delays_s),
        max_groups=config.store.max_groups,
        max_held=config.store.max_held,
    )


def _never() -> None:
    """A node that is alone is not taken for dead by itself."""


def _everybody(_: bytes) -> bool:
    """Whoever had a connection when the store was opened is gone."""
    return True


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT. Prints one line when ready. Returns the exit code."""
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config))
    except (StoreError, TlsError, OSError) as error:
        print(f"sluice: cannot serve: {error}", file=sys.stderr)
        return 1


async def _serve(config: Config) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Node(config)
    ports = await node.start()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = loop.create_task(node.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    print(_ready_line(config, ports), flush=True)
    await stopping.wait()
    log.info("stopping")
    await node.stop()
    return 0


def _ready_line(config: Config, ports: Ports) -> str:
    """Who listens where, for people and for scripts."""
    own = {"mqtt": ports.mqtt, "ws": ports.ws, "grpc": ports.grpc, "http": ports.http}
    places = {name: address_text(config.host, port) for name, port in own.items() if port >= 0}
    return " ".join(["ready", *(f"{name}={place}" for name, place in {**places, **ports.addresses}.items())])
