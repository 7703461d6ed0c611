"""The fronts for services and people as configured, and warnings about those that are open to everybody."""

import logging
from collections.abc import Callable, Mapping, Sequence

from gateway.auth.authority import Authority
from gateway.config.config import Config
from gateway.http.front import HttpFront
from gateway.http.metrics import Figures
from gateway.net.admission import Admission
from gateway.net.proxy_protocol import address_text
from gateway.node.rpc_server import RpcServer
from gateway.rpc.limits import RpcLimits
from store.api import Store
from store.config import StoreConfig

log = logging.getLogger(__name__)


def make_authority(store: Store, config: Config) -> Authority:
    """Make the authority on users and rules for all fronts of the process."""
    return Authority(store, config.mqtt.max_wrong_passwords)


def make_rpc(store: Store, authority: Authority, config: Config, settings: StoreConfig) -> RpcServer:
    """Make the gRPC front. settings: of the store."""
    groups = config.grpc.fifo_groups
    limits = RpcLimits(max_user_properties=config.mqtt.max_user_properties)
    return RpcServer(store, authority, limits, settings=settings, fifo_groups=groups, config=config.grpc)


def make_http(
    store: Store,
    authority: Authority,
    config: Config,
    sources: Callable[[], Mapping[str, Figures]],
    admissions: Callable[[], Sequence[Admission]] = list,
    rpc: RpcServer | None = None,
) -> HttpFront:
    """Make the HTTP front. sources, admissions: see `gateway.http.metrics`. rpc: the gRPC front, if any."""
    return HttpFront(
        store, authority, sources, admissions, config.http.auth, lambda: None if rpc is None else rpc.calls
    )


def warn_of_open_ports(config: Config, grpc: int, http: int) -> None:
    """Warn about ports that accept anonymous callers. grpc, http: the ports, -1 for none."""
    for name, port, auth in (("gRPC", grpc, config.grpc.auth), ("HTTP", http, config.http.auth)):
        if port >= 0 and "anonymous" in auth:
            where = address_text(config.host, port)
            log.warning(
                "%s at %s accepts anonymous callers, whatever mqtt.auth says: see %s.auth", name, where, name.lower()
            )
