"""A gateway in its own process, with its store in another process."""

import asyncio
from functools import partial
from typing import Final

from gateway.auth.authority import Authority
from gateway.broker.client_ownership import gateway_name
from gateway.config.config import Config
from gateway.http.front import HttpFront, HttpPages
from gateway.net.bind import check_host
from gateway.node.devices import Devices
from gateway.node.ports import Ports
from gateway.node.rpc_server import RpcServer
from gateway.node.services import RPC_STOP_S, rpc_server, warn_of_open_ports
from gateway.node.store_tls import gateway_credentials
from gateway.observe.counters import Counters, device_messages
from notify.event_receiver import EventReceiver
from store.remote.client import RemoteStore
from store.remote.config import RemoteConfig

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
        self._store: RemoteStore | None = None
        self._rpc: RpcServer | None = None

    async def start(self) -> Ports:
        """Connect to the store and listen. Raises StoreError, TlsError or OSError, and leaves nothing open then."""
        config = self.config
        name = gateway_name(config.split.place)
        settings = RemoteConfig(grace_s=config.split.grace_s, silence_s=_silence_s(config))
        routed, credentials = config.split.notify == "routed", gateway_credentials(config.split)
        await check_host(config.host)
        await check_host(config.http_host, "http.host")
        self._store = store = await RemoteStore.open(
            config.split.store,
            name.decode(),
            EventReceiver(),
            settings,
            routed,
            credentials,
            config.cluster.address,
            config.split.store[0] if config.cluster.log else "",
            config.grpc.advertise,
        )
        store.on_lost(self.ended.set)
        self._authority = authority = Authority(store, config.mqtt.max_wrong_passwords)
        self._rpc = rpc = rpc_server(
            store, authority, config, partial(device_messages, self.counters), lambda: store.services
        )
        self._devices = devices = Devices(store, authority, config, self.counters, name, self._more_figures)
        self._http = HttpFront(config.http)
        pages = HttpPages(
            store,
            authority,
            lambda: {"": devices.figures()},
            lambda: devices.front.admissions,
            config.http.auth,
            lambda: rpc.calls if rpc is not None else None,
        )
        await self._http.show(pages)
        try:
            await devices.start(self.ended.set)
            grpc = await rpc.start(config.host, config.grpc.port) if rpc is not None else -1
            http = await self._http.start(config.http_host, config.http.port) if config.http.port >= 0 else -1
            await warn_of_open_ports(config, grpc, http)
            return await devices.listen(grpc, http)
        except BaseException:
            await self.stop()
            raise

    async def reload(self) -> None:
        """Read the certificates again."""
        await self._devices.reload()
        await self._http.reload()

    async def stop(self) -> None:
        """Close all connections. Accepted messages are committed, and other gateways may have the clients."""
        store, self._store = self._store, None
        if store is None:
            return
        if self._rpc is not None:
            await self._rpc.stop(RPC_STOP_S)
        await self._devices.stop()
        await self._http.stop()
        self._authority.stop()
        await store.close()

    def _more_figures(self) -> dict[str, int]:
        figures = self._store.figures() if self._store is not None else {}
        if self._rpc is not None:
            figures["service_calls"] = self._rpc.calls
            figures["service_logins_failed"] = self._authority.service_logins_failed["grpc"]
        return figures


def _silence_s(config: Config) -> float:
    """Seconds without a word of the store after which it is looked for elsewhere: another node of its cluster leads."""
    usual = RemoteConfig().silence_s
    return min(usual, max(_LEAST_SILENCE_S, config.cluster.leader_timeout_s)) if config.cluster.log else usual
