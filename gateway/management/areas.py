"""The services of the management surface over a store."""

from collections.abc import Awaitable, Callable, Mapping

from gateway.config.config import Config
from gateway.management.access import Access
from gateway.management.clients import Clients, SessionDirectory
from gateway.management.dead_letters import DeadLetters
from gateway.management.groups import Groups
from gateway.management.held import Held
from gateway.management.messages import Messages
from gateway.management.storage import Storage
from gateway.management.topics import Topics
from gateway.rpc.limits import RpcLimits
from store.engine import Engine

Areas = Mapping[str, object]


def areas_of(
    engine: Engine,
    sessions: SessionDirectory,
    limits: RpcLimits,
    config: Config,
    reload: Callable[[], Awaitable[None]],
) -> Areas:
    """The services by name. reload: see `Storage`."""
    return {
        "Topics": Topics(engine),
        "Messages": Messages(engine, limits),
        "Groups": Groups(engine, limits),
        "DeadLetters": DeadLetters(engine, limits),
        "Clients": Clients(engine, sessions),
        "Held": Held(engine),
        "Storage": Storage(engine, config, reload),
        "Access": Access(engine, sessions.remove),
    }
