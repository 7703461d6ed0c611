"""Runs one process of a node, of any role."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Final, Protocol

import uvloop

from gateway.config.config import Config, ConfigError
from gateway.net.heap import collect_seldom
from gateway.net.tls import TlsError
from gateway.node.clustered_node import ClusteredStoreNode
from gateway.node.gateway_node import GatewayNode
from gateway.node.node import Node
from gateway.node.ports import Ports
from gateway.node.reloading import SupervisorLink
from gateway.node.service_manager import (
    READY,
    STOPPING,
    heartbeat_of,
    tell_service_manager,
)
from gateway.node.store_node import StoreNode
from gateway.observe.log_lines import set_up_log
from store.errors import StoreError

log = logging.getLogger(__name__)

_ORPHAN_SECONDS: Final = 10  # for a gateway without supervisor to stop; a store waits as long for its gateways
_GATEWAYS_SECONDS: Final = 30  # for the gateways of a store with a supervisor to stop; then the supervisor kills them
_ORPHAN_STORE_SECONDS: Final = 40  # for a store without supervisor to stop
EXIT_ENDED: Final = 3  # exit code: the store has declared this gateway dead, and it must be started again
_STDERR: Final = 2  # descriptor


class _Running(Protocol):
    async def start(self) -> Ports: ...

    async def reload(self) -> object: ...

    async def stop(self) -> None: ...


def run(config: Config, ready: int = 1, lifeline: int = -1) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code.

    ready: descriptor for the ready line, and behind it for bytes that say that the loop runs. lifeline: descriptor of a
    pipe whose other end, when closed, means SIGTERM.
    """
    set_up_log(config.log_level, config.log_format, _name(config))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, ready, lifeline))
    except (StoreError, TlsError, OSError) as error:
        print(f"sluice: cannot serve: {error}", file=sys.stderr)
        return 1


def _name(config: Config) -> str:
    """The name of the process in log lines, which several processes may write to one place."""
    split = config.split
    if split.role == "gateway" and split.place:
        return split.place
    return "" if split.role == "both" else split.role


async def _serve(config: Config, ready: int, lifeline: int) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    orphaned = asyncio.Event()

    def orphan() -> None:
        """Stop, also while the node still starts. A node without its store would wait for it for the grace time."""
        loop.remove_reader(lifeline)
        orphaned.set()
        seconds = _ORPHAN_STORE_SECONDS if config.split.role == "store" else _ORPHAN_SECONDS
        log.warning("the supervisor has ended: this process ends within %d seconds", seconds)
        signal.alarm(seconds)  # nobody else would kill it

    if lifeline >= 0:
        loop.add_reader(lifeline, orphan)
    supervisor = SupervisorLink() if lifeline >= 0 else None
    node: _Running
    ended = asyncio.Event()
    if config.split.role == "gateway":
        node = GatewayNode(config)
        ended = node.ended
    elif config.split.role == "store" and config.cluster.log:
        node = ClusteredStoreNode(config, supervisor)
        ended = node.ended
    elif config.split.role == "store":
        node = StoreNode(config, supervisor)
    else:
        node = Node(config)
    ports = await node.start()
    reloads: set[asyncio.Task[None]] = set()

    async def read_again() -> None:
        with suppress(ConfigError):  # the log says so
            await node.reload()

    def reload() -> None:
        task = loop.create_task(read_again())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    faulthandler.enable(_STDERR)  # a process that is ended because it hangs says where
    collect_seldom()
    os.write(ready, f"{ports.ready_line(config.host, config.http_host)}\n".encode())
    if lifeline < 0:  # otherwise the supervisor does
        tell_service_manager(READY)
    heartbeat = heartbeat_of(ready, lifeline)
    ends = [loop.create_task(each.wait()) for each in (stopping, ended, orphaned)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    log.info("stopping")
    if lifeline < 0:
        tell_service_manager(STOPPING)
    if lifeline >= 0:
        loop.remove_reader(lifeline)
    if lifeline >= 0 and not ended.is_set() and isinstance(node, StoreNode | ClusteredStoreNode):
        # A supervisor stops the gateways first. Without it, or with a SIGTERM to all processes, they stop meanwhile.
        await node.outlive_gateways(_ORPHAN_SECONDS if orphaned.is_set() else _GATEWAYS_SECONDS)
    await node.stop()
    if heartbeat is not None:
        heartbeat.stop()
    return EXIT_ENDED if ended.is_set() else 0
