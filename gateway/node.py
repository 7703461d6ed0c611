"""A node: the store, the notifier and the fronts of one process, put together, started and stopped."""

import asyncio
import gc
import logging
import signal
import sys
from dataclasses import dataclass

import uvloop

from gateway.admin import AdminFront
from gateway.config import Config
from gateway.counters import Counters
from gateway.front import MqttFront
from gateway.http import HttpFront
from gateway.router import Router
from gateway.rpc import RpcServer
from gateway.sessions import Sessions
from gateway.websocket import WebSocketFront
from notify import Notifier
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreError

log = logging.getLogger(__name__)

_STOP_GRACE = 2.0  # seconds for gRPC calls under way
# Allocations between looks for garbage cycles. The flow of messages makes none, and Python's default of 700
# costs a tenth of the CPU with a thousand connections.
_GC_THRESHOLDS = (50_000, 20, 50)


@dataclass(slots=True, frozen=True)
class Ports:
    """Where a node listens."""

    mqtt: int
    ws: int
    grpc: int
    http: int


class Node:
    """One running node, both roles embedded: devices, services and the store in one process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()
        self._engine: Engine | None = None

    async def start(self) -> Ports:
        """Open the store and listen. Raises StoreError or OSError; nothing stays open then."""
        config = self.config
        settings = StoreConfig(
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
            max_deliveries=config.store.max_deliveries,
            retry_delays_s=tuple(config.store.retry_delays_s),
            max_groups=config.store.max_groups,
        )
        self._engine = engine = await Engine.open(config.data_dir, settings)
        self._router = Router(engine.stats().log_end)
        Notifier(engine).register("local", self._router.deliver)
        self._sessions = Sessions(engine, self._router, config.mqtt, self.counters)
        self._front = MqttFront(engine, self._sessions, config.mqtt, self.counters)
        self._websocket = WebSocketFront(self._front, config.mqtt.max_packet_size)
        self._rpc = RpcServer(engine)
        self._http = HttpFront(engine, self.counters, lambda: len(self._front.connections))
        self._admin = AdminFront(engine, config.data_dir)
        try:
            await self._admin.start()
            await self._sessions.start()
            self.ports = Ports(
                grpc=await self._rpc.start(config.host, config.grpc.port),
                http=await self._http.start(config.host, config.http.port),
                ws=await self._websocket.start(config.host, config.mqtt.ws_port),
                mqtt=await self._front.start(config.host, config.mqtt.port),
            )
            return self.ports
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop in the order of the flow: fronts, sessions, store. What was accepted is committed."""
        if self._engine is None:
            return
        await self._front.stop()
        await self._sessions.stop()
        await self._websocket.stop()
        await self._rpc.stop(_STOP_GRACE)
        await self._http.stop()
        await self._admin.stop()
        await self._engine.close()
        self._engine = None


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
    except (StoreError, OSError) as error:
        print(f"sluice: cannot serve: {error}", file=sys.stderr)
        return 1


async def _serve(config: Config) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Node(config)
    ports = await node.start()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    host = f"[{config.host}]" if ":" in config.host else config.host
    print(
        f"ready mqtt={host}:{ports.mqtt} ws={host}:{ports.ws} grpc={host}:{ports.grpc} http={host}:{ports.http}",
        flush=True,
    )
    await stopping.wait()
    log.info("stopping")
    await node.stop()
    return 0
