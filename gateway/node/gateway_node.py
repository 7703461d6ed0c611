"""A gateway in its own process, with its store in another process."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from google.protobuf.message import Message

from gateway.auth.audit import AuditLog
from gateway.auth.authenticators.links import links_of
from gateway.auth.authority import Authority
from gateway.broker.client_ownership import gateway_name
from gateway.config.config import Config
from gateway.http.front import HttpFront, HttpPages
from gateway.management.methods import Method
from gateway.management.passing import Passing
from gateway.management.rights import Manager
from gateway.management.surface import Management
from gateway.net.bind import check_host
from gateway.net.weighted import Weighted
from gateway.node.devices import Devices
from gateway.node.draining import Draining
from gateway.node.ports import Ports
from gateway.node.reloading import change_settings
from gateway.node.rpc_server import RpcServer
from gateway.node.services import RPC_STOP_S, rpc_server, warn_of_open_ports
from gateway.node.store_tls import gateway_tls
from gateway.node.tracing import Tracing
from gateway.observe.counters import Counters, device_messages
from gateway.observe.process_figures import process_figures
from gateway.observe.service_clients import ServiceClients
from gateway.registry.bound_schemas import BoundSchemas
from notify.event_receiver import EventReceiver
from store.errors import StoreClosed
from store.remote.client.remote_store import RemoteStore
from store.remote.client.service_state import first_service_state, follow_service_state
from store.remote.client.standby_store import StandbyStore
from store.remote.config import RemoteConfig
from store.remote.wire.layout import NodeFacts
from store.remote.wire.service_state import ServiceState

log = logging.getLogger(__name__)

_LEAST_SILENCE_S: Final = 2.0  # between heartbeats of a busy store, twice


class GatewayNode:
    """A gateway. Start it once, and stop it once.

    `ended` is set when the store has declared it dead, or was away for too long. Other gateways may have its clients
    then, so the process must be started again.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counters = Counters()
        self.ended = asyncio.Event()
        self._store: RemoteStore | StandbyStore | None = None
        self._clients = ServiceClients()
        self._rpc: RpcServer | None = None
        self._state = ServiceState()
        self._changed = asyncio.Event()  # the state
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Ports:
        """Connect to the store and listen. Raises StoreError, TlsError or OSError, and leaves nothing open then."""
        config = self.config
        name = gateway_name(config.split.place)
        settings = RemoteConfig(grace_s=config.split.grace_s, silence_s=_silence_s(config))
        routed, tls = config.split.notify == "routed", gateway_tls(config.split)
        cluster, own_store = config.cluster, config.split.store[0] if config.cluster.log else ""
        node = NodeFacts(cluster.address, config.grpc.advertise, config.mqtt.advertise, cluster.weight)
        await check_host(config.host)
        await check_host(config.http_host, "http.host")
        links = links_of(config.auth)
        self._state = ServiceState(await _standby(own_store, settings.grace_s) if own_store else "")
        standby = self._state.standby
        store: RemoteStore | StandbyStore
        if standby:
            log.info("this gateway serves reads alone: %s", standby)
            store = await StandbyStore.open(own_store, standby)
        else:
            store = await RemoteStore.open(
                config.split.store, name.decode(), EventReceiver(), settings, routed, tls, node, own_store
            )
            store.on_lost(self.ended.set)
        self._store = store
        self._tracing = Tracing(config, config.split.place or "gateway")
        self._passing = Passing(None if own_store else tls)
        self._stores = [own_store] if own_store else list(config.split.store)
        self._management = Management(pass_on=self._pass_on)
        audit = AuditLog(config.audit, config.split.place or "gateway", None if standby else store)
        wrong = config.mqtt.max_wrong_passwords
        self._authority = authority = Authority(store, wrong, audit, config.auth, links)
        self._schemas = BoundSchemas(store)
        self._rpc = self._make_rpc(store)
        own_name = None if standby else name
        self._devices = devices = Devices(
            store,
            authority,
            config,
            self.counters,
            own_name,
            self._more_figures,
            lambda: devices_of(store.nodes, node),
            self._tracing,
            self._clients,
            self._schemas.checks,
        )
        devices.sessions.redirection.why = standby
        self._draining = Draining(devices.sessions)
        self._http = HttpFront(config.http)
        pages = HttpPages(
            store,
            authority,
            lambda: {"": devices.figures()},
            lambda: devices.front.admissions,
            config.http,
            lambda: self._rpc.calls if self._rpc is not None else None,
        )
        await self._http.show(pages)
        try:
            if not standby:  # which takes no messages
                await self._schemas.start()
            await devices.start(self.ended.set)
            grpc = await self._rpc.start(config.host, config.grpc.port) if self._rpc is not None else -1
            http = await self._http.start(config.http_host, config.http.port) if config.http.port >= 0 else -1
            await warn_of_open_ports(config, grpc, http, console=False)
            ports = await devices.listen(grpc, http)
            if own_store:
                works = (follow_service_state(own_store, self._on_state), self._switch_services(store))
                self._tasks = [asyncio.create_task(each) for each in works]
            return ports
        except BaseException:
            await self.stop()
            raise

    async def reload(self) -> None:
        """Read the configuration and the certificates again. Raises ConfigError, and changes nothing then."""
        change_settings(self.config)
        self._devices.set_limits()
        await self._devices.reload()
        await self._http.reload()

    async def stop(self) -> None:
        """Close all connections. Accepted messages are committed, and other gateways may have the clients."""
        store, self._store = self._store, None
        if store is None:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._draining.end()
        if self._rpc is not None:
            await self._rpc.stop(RPC_STOP_S)
        await self._devices.stop()
        await self._http.stop()
        await self._schemas.stop()
        await self._authority.stop()
        self._passing.close()
        await store.close()
        await self._tracing.stop()

    # --- draining

    def _on_state(self, state: ServiceState) -> None:
        """Serve whom the node's own store says."""
        store, before, self._state = self._store, self._state, state
        if store is None or state == before:
            return
        if state.standby != before.standby:
            log.info("this gateway starts again: %s", state.standby or "its site has the log now")
            if state.standby:
                store.leave(state.standby)
            self.ended.set()
            return
        if state.standby:
            return
        store.tell(msgspec.structs.replace(store.node, is_drained=bool(state.drain_rate)))
        if state.drain_rate:
            self._draining.begin(state.drain_rate)
        else:
            self._draining.end()
        self._changed.set()

    async def _switch_services(self, store: RemoteStore | StandbyStore) -> None:
        """Stop serving cloud services some time after clients are not told of this node any more, and serve them again
        when the node is drained no more."""
        while self._rpc is not None:
            await self._changed.wait()
            self._changed.clear()
            if self._state.drain_rate:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._state.services_s):
                        await self._changed.wait()
                        continue
                await self._rpc.stop(RPC_STOP_S)
            elif not self._rpc.is_running:
                self._rpc = self._make_rpc(store)
                if self._rpc is not None:
                    await self._rpc.start(self.config.host, self.config.grpc.port)

    def _make_rpc(self, store: RemoteStore | StandbyStore) -> RpcServer | None:
        traffic = partial(device_messages, self.counters)
        return rpc_server(
            store,
            self._authority,
            self.config,
            traffic,
            lambda: services_of(store.nodes),
            self._management,
            self._tracing,
            self._clients,
            self._schemas.checks,
        )

    async def _pass_on(self, method: Method, request: Message, manager: Manager) -> Message:
        """Have the store's process carry out a call of the management surface. Raises `RequestError`."""
        return await self._passing.ask(self._stores, method, request, manager, is_last=False)

    def _more_figures(self) -> dict[str, int]:
        figures = self._store.figures() if self._store is not None else {}
        figures |= process_figures()
        if self._rpc is not None:
            figures["service_calls"] = self._rpc.calls.under_way
            figures |= self._rpc.calls.figures()
            figures["service_logins_failed"] = self._authority.service_logins_failed["grpc"]
        return figures


async def _standby(own_store: str, seconds: float) -> str:
    """Why this node's site stands by; "": it does not. Raises StoreClosed if its store does not say."""
    try:
        async with asyncio.timeout(seconds):
            return (await first_service_state(own_store)).standby
    except TimeoutError:
        raise StoreClosed(f"the store at {own_store} has not said for {seconds:g} s who leads") from None


def services_of(nodes: Sequence[NodeFacts]) -> list[Weighted]:
    """Where cloud services reach the nodes: those that are not drained, or all if all are."""
    found = [(each.services, each.weight, each.is_drained) for each in nodes if each.services]
    drained = {address for address, _, is_drained in found if is_drained}
    serving = dict.fromkeys((address, weight) for address, weight, _ in found if address not in drained)
    return list(serving or dict.fromkeys((address, weight) for address, weight, _ in found))


def devices_of(nodes: Sequence[NodeFacts], own: NodeFacts) -> list[Weighted]:
    """Where devices reach the other nodes that are not drained."""
    found = {each.store: (each.devices, each.weight) for each in nodes if each.devices and each.store != own.store}
    drained = {each.store for each in nodes if each.is_drained}
    return [place for store, place in found.items() if store not in drained]


def _silence_s(config: Config) -> float:
    """Seconds without a word of the store after which it is looked for elsewhere: another node of its cluster leads."""
    usual = RemoteConfig().silence_s
    return min(usual, max(_LEAST_SILENCE_S, config.cluster.leader_timeout_s)) if config.cluster.log else usual
