"""The MQTT side of a node, over any store: sessions, fronts and listeners."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gateway.auth.authority import Authority
from gateway.broker.client_ownership import SINGLE_NODE, ClientOwnership, JoinedGateway
from gateway.broker.questions import answer_question
from gateway.broker.sessions import Sessions
from gateway.config.config import Config
from gateway.delivery.router import Router
from gateway.listen.mqtt_front import MqttFront
from gateway.listen.mqtt_listeners import Listeners
from gateway.listen.websocket import WebSocketFront
from gateway.net.descriptors import room_for_services
from gateway.net.weighted import Weighted
from gateway.net.write_buffer import Flusher
from gateway.node.ports import Ports
from gateway.node.tracing import Tracing
from gateway.observe.calls import histogram_figures
from gateway.observe.counters import Counters
from gateway.observe.service_clients import ServiceClients
from gateway.schemas.payload_checks import PayloadChecks
from store.api import Store


class Devices:
    """The MQTT side of a node. Create it on the loop, start it once, and stop it once."""

    def __init__(
        self,
        store: Store,
        authority: Authority,
        config: Config,
        counters: Counters,
        name: bytes | None = None,
        more_figures: Callable[[], Mapping[str, int]] = dict,
        others: Callable[[], Sequence[Weighted]] = list,
        tracing: Tracing | None = None,
        clients: ServiceClients | None = None,
        payload_checks: PayloadChecks | None = None,
    ) -> None:
        """name: of a gateway in a separate process, else None. more_figures, clients: those that only such a gateway
        has. others: see `Sessions`. payload_checks: None: there are no schemas."""
        self._config = config
        spans = None
        if tracing is not None:
            spans = tracing.device_spans()
            store = tracing.store(store, "mqtt", with_groups=False)
        self._more_figures = more_figures
        self._clients = clients or ServiceClients()
        self._payload_checks = payload_checks or PayloadChecks()
        self._joined = JoinedGateway(store, name, self.figures) if name is not None else None
        ownership: ClientOwnership = self._joined or SINGLE_NODE
        self._flusher = flusher = Flusher(asyncio.get_running_loop(), counters)
        self.router = Router(store.stats().log_end, flusher, store.wants)
        store.on_commit(self.router.deliver)
        checks = self._payload_checks
        self.sessions = Sessions(store, self.router, authority, config.mqtt, counters, ownership, others, spans, checks)
        services = room_for_services(config.grpc.max_connections) if config.grpc.port >= 0 else 0
        self.front = MqttFront(store, self.sessions, config.mqtt, counters, flusher, services, checks)
        self.websocket = WebSocketFront(self.front, config.mqtt.max_packet_size)
        self.listeners: Listeners | None = None

    async def start(self, on_ended: Callable[[], None]) -> None:
        """Prepare to `listen`. on_ended: called when the store has declared this gateway dead.

        Raises StoreError and TlsError.
        """
        if self._joined is not None:
            sessions = self.sessions
            answer = partial(answer_question, sessions, self._clients)
            await self._joined.start(sessions.give_up, sessions.shared_subscriptions.wake, answer, on_ended)
        self.sessions.start()
        await self.websocket.start()
        self.listeners = Listeners(self._config, self.front, self.websocket)

    async def listen(self, grpc: int, http: int) -> Ports:
        """Accept connections. Returns the ports of the node, of which `grpc` and `http` are open. Raises OSError."""
        assert self.listeners is not None
        addresses = await self.listeners.open()
        mqtt, ws = (int(addresses.pop(name, "-1").rpartition(":")[2]) for name in ("mqtt", "ws"))
        return Ports(mqtt, ws, grpc, http, addresses)

    def set_limits(self) -> None:
        """Take the limits of the configuration, which has changed."""
        if self.listeners is not None:
            self.listeners.set_limits()

    async def reload(self) -> None:
        """Read the certificates again."""
        if self.listeners is not None:
            await self.listeners.reload()

    async def stop(self) -> None:
        """Close all connections. Accepted messages are committed, and other gateways may have the clients."""
        if self.listeners is not None:
            await self.listeners.close()
        self.front.stop(self.sessions.redirection.reference)
        await self.sessions.stop()
        self.front.end()
        await self.websocket.stop()
        if self._joined is not None:
            await self._joined.stop()

    def figures(self) -> dict[str, int]:
        """The figures of this node."""
        return {
            **self.sessions.sys_topics.figures(),
            "connections": len(self.front.connections),
            **histogram_figures("delivery", self._flusher.delivery_us),
            **self._payload_checks.figures(),
            **self._more_figures(),
        }
