"""The services of the management surface over a store."""

from collections.abc import Awaitable, Callable, Mapping

from gateway.auth.authority import Authority
from gateway.broker.service_directory import ServiceDirectory
from gateway.config.config import Config
from gateway.config.reload import Changes
from gateway.eventing.event_rules import EventRules
from gateway.management.areas.access import AccessService
from gateway.management.areas.access_requests import AccessRequestsService
from gateway.management.areas.audit import AuditService
from gateway.management.areas.authentication import AuthenticationService
from gateway.management.areas.bans import BansService
from gateway.management.areas.clients import ClientsService, SessionDirectory
from gateway.management.areas.connectors import ConnectorsService
from gateway.management.areas.consumers import ConsumersService
from gateway.management.areas.dead_letters import DeadLettersService
from gateway.management.areas.events import EventsService
from gateway.management.areas.groups import GroupsService
from gateway.management.areas.held import HeldService
from gateway.management.areas.messages import MessagesService
from gateway.management.areas.schemas import SchemasService
from gateway.management.areas.services import Machines, ServicesService
from gateway.management.areas.shadows import ShadowsService
from gateway.management.areas.storage import Sources, StorageService
from gateway.management.areas.topics import TopicsService
from gateway.registry.bound_schemas import BoundSchemas
from gateway.registry.registry import SchemaRegistry
from gateway.rpc.limits import RpcLimits
from gateway.shadows.shadows import Shadows
from store.api import Store
from store.engine import Engine

Areas = Mapping[str, object]


def areas_of(
    engine: Engine,
    sessions: SessionDirectory,
    services: ServiceDirectory,
    limits: RpcLimits,
    config: Config,
    reload: Callable[[], Awaitable[Changes | None]],
    sources: Sources,
    authority: Authority,
    rules: EventRules,
    schemas: BoundSchemas,
    shadows: Shadows,
    traffic: Store | None = None,
) -> Areas:
    """The services by name. reload, sources: see `StorageService`. schemas: those by which this process checks
    payloads. traffic: the store for messages that are published and consumed, if it is not the engine itself."""
    store, checks = traffic or engine, schemas.checks
    access = AccessService(engine, sessions.remove)
    return {
        "Topics": TopicsService(engine, config.store),
        "Messages": MessagesService(store, limits, Machines(services, sessions), checks),
        "Groups": GroupsService(engine, limits, services),
        "Consumers": ConsumersService(store, limits),
        "DeadLetters": DeadLettersService(engine, limits),
        "Clients": ClientsService(engine, sessions),
        "Services": ServicesService(services),
        "Held": HeldService(engine),
        "Storage": StorageService(engine, config, reload, sources, authority.service_logins_failed),
        "Audit": AuditService(config.audit.folder),
        "Access": access,
        "AccessRequests": AccessRequestsService(engine, access),
        "Authentication": AuthenticationService(authority),
        "Bans": BansService(engine),
        "Connectors": ConnectorsService(engine, limits),
        "Events": EventsService(engine, rules, authority, limits, checks),
        "Shadows": ShadowsService(shadows),
        "Schemas": SchemasService(engine, SchemaRegistry(engine, limits), schemas.refresh),
    }
