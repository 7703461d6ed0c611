"""The fronts for services and people: gRPC in every process, HTTP and the administration socket beside the store."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from aiohttp import web

from gateway.auth.authority import Authority
from gateway.broker.service_directory import ServiceDirectory
from gateway.config.config import Config
from gateway.config.reload import Changes
from gateway.console.console import Console
from gateway.eventing.event_rules import EventRules
from gateway.http.front import HttpFront, HttpPages, source_of
from gateway.http.metrics import Figures
from gateway.management.admin_socket import AdminSocket
from gateway.management.areas.areas import areas_of
from gateway.management.areas.clients import SessionDirectory
from gateway.management.areas.cluster import NoCluster
from gateway.management.cloudevents_api import CloudEventsApi
from gateway.management.confluent_api import ConfluentApi
from gateway.management.connect_rest_api import ConnectRestApi
from gateway.management.http_api import HttpApi, Identify
from gateway.management.passing import PassedCalls
from gateway.management.rights import REQUEST_ID, Manager, RemoteManager
from gateway.management.surface import Management
from gateway.net.admission import Admission
from gateway.net.bind import check_host
from gateway.net.proxy_protocol import address_text
from gateway.net.weighted import Weighted
from gateway.node.rpc_server import RpcServer
from gateway.node.tracing import Tracing
from gateway.observe.service_clients import ServiceClients
from gateway.registry.bound_schemas import BoundSchemas
from gateway.rpc.limits import RpcLimits
from gateway.schemas.payload_checks import PayloadChecks
from gateway.shadows.consumer import ShadowConsumer
from gateway.shadows.shadows import Shadows
from store.api import Store
from store.engine import Engine
from store.errors import StoreClosed

log = logging.getLogger(__name__)

RPC_STOP_S: Final = 2.0  # for gRPC calls to end


class Services:
    """The fronts for services, people and administrators. Start them once, and stop them once."""

    def __init__(
        self,
        engine: Engine,
        authority: Authority,
        config: Config,
        sessions: SessionDirectory,
        services: ServiceDirectory,
        traffic: Callable[[], int],
        sources: Callable[[], Mapping[str, Figures]],
        reload: Callable[[], Awaitable[Changes | None]],
        schemas: BoundSchemas,
        admissions: Callable[[], Sequence[Admission]] = list,
        tracing: Tracing | None = None,
    ) -> None:
        """reload: see `StorageService`. traffic: see `RpcServer`. sources, admissions: see
        `gateway.http.metrics`."""
        self._config = config
        own = [(config.grpc.advertise, 1)] if config.grpc.advertise else []
        clients = services.clients
        management = Management(lambda: authority.audit, clients=clients)
        traffic_store = tracing.store(engine) if tracing is not None else engine
        self.rules = EventRules(engine, authority, config.events, config.grpc.group_share, traffic)
        limits, rules = rpc_limits(config), self.rules
        shadows = Shadows(engine, config.shadow, limits)
        self._shadow_consumer = ShadowConsumer(engine, shadows)
        areas = areas_of(
            engine,
            sessions,
            services,
            limits,
            config,
            reload,
            sources,
            authority,
            rules,
            schemas,
            shadows,
            traffic_store,
        )
        management.serve({**areas, "Cluster": NoCluster()})
        self.passed_calls = PassedCalls(management, lambda: authority)
        self.rpc = rpc_server(
            engine, authority, config, traffic, lambda: own, management, tracing, clients, schemas.checks
        )
        self.http = HttpFront(config.http)
        identify = manager_of(self.http)
        HttpApi(management, identify).add_to(self.http.app)
        CloudEventsApi(management, identify).add_to(self.http.app)
        ConnectRestApi(management, identify).add_to(self.http.app)
        ConfluentApi(management, identify).add_to(self.http.app)
        if config.http.console:
            Console(management, self.http).add_to(self.http.app)
        self.admin = AdminSocket(config.data_dir, management)
        self._engine = engine
        self._authority = authority
        self._sources = sources
        self._admissions = admissions

    async def start(self) -> tuple[int, int]:
        """Listen for services and people. Returns the ports for gRPC (-1: none) and HTTP. Raises TlsError and
        OSError."""
        config = self._config
        rpc = self.rpc
        pages = HttpPages(
            self._engine,
            self._authority,
            self._sources,
            self._admissions,
            config.http,
            lambda: rpc.calls if rpc is not None else None,
        )
        await self.http.show(pages)
        grpc = await rpc.start(config.host, config.grpc.port) if rpc is not None else -1
        http = await self.http.start(config.http_host, config.http.port)
        await warn_of_open_ports(config, grpc, http, console=config.http.console)
        self.rules.start()
        self._shadow_consumer.start()
        return grpc, http

    async def reload(self) -> None:
        """Read the certificate of HTTP and the secrets of webhooks again. Each handshake of gRPC looks for new
        certificates."""
        await self.http.reload()
        self.rules.reload()

    async def stop(self) -> None:
        await self._shadow_consumer.stop()
        await self.rules.stop()
        if self.rpc is not None:
            await self.rpc.stop(RPC_STOP_S)
        await self.http.stop()
        await self.admin.stop()


def rpc_server(
    store: Store,
    authority: Authority,
    config: Config,
    traffic: Callable[[], int],
    services: Callable[[], Sequence[Weighted]],
    management: Management | None = None,
    tracing: Tracing | None = None,
    clients: ServiceClients | None = None,
    payload_checks: PayloadChecks | None = None,
) -> RpcServer | None:
    """The gRPC server of a process; None if it has none. traffic, services, management, clients, payload_checks: see
    `RpcServer`."""
    if config.grpc.port < 0:
        return None
    limits, share = rpc_limits(config), config.split.share_ports
    is_traced = tracing is not None and tracing.is_on
    if tracing is not None:
        store = tracing.store(store, "grpc")
    return RpcServer(
        store,
        authority,
        limits,
        config.grpc,
        share,
        traffic,
        services,
        management,
        is_traced,
        clients,
        payload_checks,
    )


def rpc_limits(config: Config) -> RpcLimits:
    """The limits of cloud services."""
    mqtt = config.mqtt
    return RpcLimits(
        max_user_properties=mqtt.max_user_properties,
        max_topic_length=mqtt.max_topic_length,
        max_topic_levels=mqtt.max_topic_levels,
        max_entries=config.buckets.max_entries,
        max_entry_bytes=config.buckets.max_bytes,
    )


def manager_of(http: HttpFront) -> Identify:
    """Tells who calls the management surface over HTTP."""

    async def identify(request: web.Request) -> Manager:
        pages = http.pages
        if pages is None:
            raise StoreClosed("this node has no log that can be read now, and knows no users without it")
        caller, request_id = await pages.identify(request), request.headers.get(REQUEST_ID, "")
        return RemoteManager(pages.authority, caller, source_of(request), request_id)

    return identify


async def warn_of_open_ports(config: Config, grpc: int, http: int, *, console: bool) -> None:
    """Warn about ports that accept anonymous callers, or passwords without TLS, from other machines. grpc, http: the
    ports, -1 for none. console: whether HTTP has it."""
    fronts = (("gRPC", config.host, grpc, config.grpc), ("HTTP", config.http_host, http, config.http))
    for name, host, port, front in fronts:
        if port < 0 or await check_host(host):
            continue
        place = address_text(host, port)
        if "anonymous" in front.auth:
            log.warning(
                "%s at %s accepts anonymous callers, whatever mqtt.auth says: see %s.auth", name, place, name.lower()
            )
        if name == "HTTP" and console and not front.certificate and "password" not in front.auth:
            log.warning("the console at %s accepts passwords without TLS: see http.certificate", place)
        if "password" in front.auth and not front.certificate:
            log.warning("%s at %s accepts passwords without TLS: see %s.certificate", name, place, name.lower())
