"""The fronts for services and people, as the configuration wants them, and what is said of those that ask nobody."""

import logging
from collections.abc import Callable, Mapping, Sequence

from gateway.auth.authority import Authority
from gateway.config.config import Config
from gateway.http.front import HttpFront
from gateway.http.metrics import Figures
from gateway.net.admission import Admission
from gateway.net.proxy_protocol import address_text
from gateway.node.rpc_server import RpcServer
from store.api import Store
from store.config import StoreConfig

log = logging.getLogger(__name__)


def make_authority(store: Store, config: Config) -> Authority:
    """Who knows users and rules, for all fronts of the process."""
    return Authority(store, config.mqtt.max_wrong_passwords)


def make_rpc(store: Store, authority: Authority, config: Config, settings: StoreConfig) -> RpcServer:
    """The gRPC front. settings: of the store."""
    groups = config.grpc.fifo_groups
    return RpcServer(store, authority, settings=settings, fifo_groups=groups, config=config.grpc)


def make_http(
    store: Store,
    authority: Authority,
    config: Config,
    sources: Callable[[], Mapping[str, Figures]],
    admissions: Callable[[], Sequence[Admission]] = list,
    rpc: RpcServer | None = None,
) -> HttpFront:
    """The HTTP front. sources, admissions: see `gateway.http.metrics`. rpc: the gRPC front, of a node that has one."""
    return HttpFront(
        store, authority, sources, admissions, config.http.auth, lambda: None if rpc is None else rpc.calls
    )


def warn_of_open_ports(config: Config, grpc: int, http: int) -> None:
    """Of ports that others reach and that take anybody. grpc, http: the ports, -1 for none."""
    for name, port, auth in (("gRPC", grpc, config.grpc.auth), ("HTTP", http, config.http.auth)):
        if port >= 0 and "anonymous" in auth:
            where = address_text(config.host, port)
            log.warning("%s at %s takes anybody, whatever mqtt.auth says: see %s.auth", name, where, name.lower())
