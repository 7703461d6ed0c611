"""The store of a clustered node, in its own process: it follows the shared log, and serves gateways while it leads.

The rules of the file:

* The listeners for gateways, HTTP and commands stay open whatever the role. What is behind them changes.
* A leadership that ends is a store that ends: the streams of all gateways break before any append is answered that
  the shared log did not decide. So a gateway sends it again to the next leader, which knows what it has.
* The fronts let go of a store before its files are closed.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final, cast

import grpc
import msgspec
from google.protobuf.message import Message

from gateway.auth.audit import AuditLog
from gateway.auth.authenticators.links import links_of
from gateway.auth.authority import Authority
from gateway.config.config import Config
from gateway.config.reload import Changes
from gateway.config.store import store_config
from gateway.console.console import Console
from gateway.eventing.event_rules import EventRules
from gateway.http.front import HttpFront, HttpPages
from gateway.management.admin_socket import AdminSocket
from gateway.management.areas.areas import Areas, areas_of
from gateway.management.areas.storage import StorageService
from gateway.management.cloudevents_api import CloudEventsApi
from gateway.management.confluent_api import ConfluentApi
from gateway.management.connect_rest_api import ConnectRestApi
from gateway.management.http_api import HttpApi
from gateway.management.methods import Method
from gateway.management.passing import PassedCalls, Passing
from gateway.management.rights import Manager, NodeUser
from gateway.management.surface import Management
from gateway.net.bind import check_host
from gateway.node.cluster_member import ClusterMember, DrainOrder
from gateway.node.ports import Ports
from gateway.node.reloading import SupervisorLink, change_settings
from gateway.node.served_store import ServedStore
from gateway.node.services import manager_of, rpc_limits, warn_of_open_ports
from gateway.node.store_tls import gateway_tls, store_tls
from gateway.node.tracing import Tracing
from gateway.observe.service_clients import ServiceClients
from gateway.registry.bound_schemas import BoundSchemas
from gateway.rpc.status import RequestError
from gateway.shadows.consumer import ShadowConsumer
from gateway.shadows.shadows import Shadows
from store.api import Store
from store.cluster.clustered_store import ClusteredStore, ClusteredStoreConfig
from store.cluster.member import NodeRole
from store.cluster.shared_log import SharedLogMisconfigured
from store.cluster.slot import LeaderClaim
from store.data_folder import DRAINED
from store.engine import Engine
from store.errors import StoreError, StoreFailed
from store.local_store import LocalStore
from store.remote.config import RemoteConfig
from store.remote.server.listener import StoreListener
from store.remote.wire.service_state import ServiceState

log = logging.getLogger(__name__)

_HAND_OVER_S: Final = 2.0  # limit of a request to the shared log when this node stops
_LOOK_S: Final = 2.0  # between two looks of a drained node whether others serve clients
_ALONE_LOOKS: Final = 5  # that find no other one, until it serves clients itself: others may begin to, after a failover


class ClusteredStoreNode:
    """The store of a clustered node. Start it once, and stop it once. `ended`: it has to be started again."""

    def __init__(self, config: Config, supervisor: SupervisorLink | None = None) -> None:
        """supervisor: see `StoreNode`."""
        self.config = config
        self._supervisor = supervisor
        self.ended = asyncio.Event()
        self._store: ClusteredStore | None = None
        self._served: ServedStore | None = None  # while this node leads
        self._followed: LocalStore | None = None  # what HTTP shows while it does not
        self._authority: Authority | None = None  # of that
        self._clients = ServiceClients()
        self._management = Management(self._audit, self._pass_on, self._clients)
        self._areas: Areas = {}  # of the store, or the copy, that `_management` serves
        self._rules: EventRules | None = None  # of the store, while this node leads
        self._shadow_consumer: ShadowConsumer | None = None  # likewise
        self._schemas: BoundSchemas | None = None  # likewise
        self._changed = asyncio.Event()  # the role
        self._let_go = asyncio.Event()  # no front uses an engine, or a copy
        self._let_go.set()
        self._drained: DrainOrder | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Ports:
        """Open the folder and listen. Raises StoreError, TlsError or OSError, and leaves nothing open then."""
        config, cluster = self.config, self.config.cluster
        await check_host(config.host)
        await check_host(config.http_host, "http.host")
        about = ClusteredStoreConfig(
            cluster.name,
            cluster.log,
            cluster.address,
            cluster.options,
            cluster.leader_timeout_s,
            cluster.poll_ms,
            cluster.snapshot_bytes,
            cluster.site,
        )
        tls = gateway_tls(config.split)
        links_of(config.auth)  # fails here, and not when this node leads
        self._store = store = await ClusteredStore.open(config.data_dir, store_config(config), about)
        store.on_role(self._on_role)
        store.before_close(self._wait_for_fronts)
        self._member = member = ClusterMember(
            store, cluster.name, cluster.address, self._nodes, tls, self._drain, cluster.site
        )
        store.meet(member.check_name)
        self._tracing = Tracing(config, f"{cluster.name}.store")
        self._passing = Passing(tls)
        passed = PassedCalls(self._management, self._own_authority)
        self._listener = StoreListener(RemoteConfig(), member.leader, member.status, member.carry_out, passed.answer)
        self._resume_drain()
        self._http = HttpFront(config.http, member)
        HttpApi(self._management, manager_of(self._http)).add_to(self._http.app)
        CloudEventsApi(self._management, manager_of(self._http)).add_to(self._http.app)
        ConnectRestApi(self._management, manager_of(self._http)).add_to(self._http.app)
        ConfluentApi(self._management, manager_of(self._http)).add_to(self._http.app)
        if config.http.console:
            Console(self._management, self._http).add_to(self._http.app)
        self._management.serve({"Cluster": member})
        self._admin = AdminSocket(config.data_dir, self._management)
        try:
            await self._admin.start()
            http = await self._http.start(config.http_host, config.http.port)
            await warn_of_open_ports(config, -1, http, console=config.http.console)
            await self._listener.open(config.split.listen)
            await self._listener.open(cluster.listen, store_tls(config.split))
        except BaseException:
            await self._close()
            raise
        loop = asyncio.get_running_loop()
        works = (self._run(store), self._change(), member.run(), self._mind_others())
        self._tasks = [loop.create_task(each) for each in works]
        return Ports(-1, -1, -1, http, {"store": config.split.listen, "cluster": cluster.listen})

    async def reload(self) -> Changes | None:
        """Read the configuration and the certificates again: see `Node`. Each handshake of gateways looks for new
        certificates."""
        changes = change_settings(self.config)
        if self._store is not None:
            self._store.change_retention(store_config(self.config))
        await self._http.reload()
        if self._rules is not None:
            self._rules.reload()
        return changes

    async def _reload_all(self) -> Changes | None:
        """Let all processes of the node do so, if they have a supervisor."""
        return await self.reload() if self._supervisor is None else self._supervisor.reload_all(self.config)

    async def outlive_gateways(self, seconds: float) -> None:
        """Wait until all gateways have left, if this node leads. Those of other nodes stay."""
        served = self._served
        if served is not None:
            await served.outlive_gateways(seconds, self.config.cluster.name)

    async def stop(self) -> None:
        """Stop serving and leave the cluster. If this node leads, another one does so at once."""
        store = self._store
        if store is None:
            return
        await self._hand_over(store)
        self._on_role(NodeRole.FOLLOWER, None)
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks[1:], return_exceptions=True)
        await self._end_service()
        self._tasks[0].cancel()
        await asyncio.gather(*self._tasks[:1], return_exceptions=True)
        await self._close()

    async def _hand_over(self, store: ClusteredStore) -> None:
        """Let another node lead, if there is one that can: it need not wait for the leader timeout."""
        if store.engine is None or self._member.damage:
            return
        node = await self._member.successor()
        if node:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_HAND_OVER_S):
                    await store.hand_over(node)

    def _audit(self) -> AuditLog | None:
        """The audit log of this process, while it has a copy of the log."""
        authority = self._own_authority()
        return None if authority is None else authority.audit

    def _own_authority(self) -> Authority | None:
        """That of the log, or of the copy of it, that this process has."""
        return self._served.authority if self._served is not None else self._authority

    async def _pass_on(self, method: Method, request: Message, manager: Manager) -> Message:
        """Have the node that leads carry out a call. Raises `RequestError`."""
        address, why = self._member.leader()
        if not address:
            raise RequestError(grpc.StatusCode.UNAVAILABLE, f"no node can be asked for this now: {why}")
        if isinstance(manager, NodeUser):
            manager = NodeUser(f"{manager.source} of {self.config.cluster.name}")
        return await self._passing.ask([address], method, request, manager, is_last=True)

    async def _close(self) -> None:
        store, self._store = self._store, None
        await self._listener.close()
        await self._http.stop()
        if self._authority is not None:
            await self._authority.stop()
        await self._admin.stop()
        self._passing.close()
        assert store is not None
        await store.close()
        await self._tracing.stop()

    async def _run(self, store: ClusteredStore) -> None:
        """Take part in the cluster. What ends that is for a person, or for the next start."""
        try:
            await store.run()
        except (StoreError, OSError) as error:
            log.critical("this node takes part in the cluster no more: %s", error)
            self._member.damage = str(error)
            self._listener.serve_copy(None)
            self._on_role(NodeRole.FOLLOWER, None)
            if isinstance(error, StoreFailed | OSError | SharedLogMisconfigured):  # a start does not mend the others
                self.ended.set()
        except Exception:
            log.critical("this node takes part in the cluster no more", exc_info=True)
            self.ended.set()

    def _nodes(self) -> list[str]:
        return self._served.nodes if self._served is not None else []

    # --- draining

    def _drain(self, order: DrainOrder | None) -> None:
        """Tell the gateways of this node. The order holds until the node as a whole is started again, also if this
        process is."""
        path = self.config.data_dir / DRAINED
        if order is None:
            path.unlink(missing_ok=True)
            log.info("this node is drained no more")
        else:
            path.write_bytes(msgspec.json.encode(order))
            log.info("this node is drained: its clients are sent to other nodes")
        self._drained = order
        self._member.is_alone = False
        self._tell_gateways()

    async def _mind_others(self) -> None:
        """Let this node serve clients although it is drained, while no other node does."""
        member, missed = self._member, 0
        while True:
            await asyncio.sleep(_LOOK_S)
            is_needed = member.is_drained and await member.is_needed()
            missed = missed + 1 if is_needed and self._drained is not None else 0  # the order may have been taken back
            is_alone = missed >= _ALONE_LOOKS
            if is_alone and not member.is_alone:
                log.warning("this node is drained, and serves clients all the same: no other node does")
            elif member.is_alone and not is_alone:
                log.info("other nodes serve clients again: those of this node, which is drained, are sent there")
            if is_alone != member.is_alone:
                member.is_alone = is_alone
                self._tell_gateways()

    def _resume_drain(self) -> None:
        try:
            content = (self.config.data_dir / DRAINED).read_bytes()
            self._drained = msgspec.json.decode(content, type=DrainOrder)
        except (OSError, msgspec.MsgspecError):
            return
        self._member.is_drained = True

    def _tell_gateways(self) -> None:
        """Tell the gateways of this node whom they serve, if it is known which site has the log."""
        if self._store is not None and self._store.leader is not None:
            order = DrainOrder(0, 0) if self._drained is None or self._member.is_alone else self._drained
            self._listener.states.set(ServiceState(self._member.standby(), order.rate, order.services_s))

    # --- roles

    def _on_role(self, role: NodeRole, _leader: LeaderClaim | None) -> None:
        if role is not NodeRole.LEADER and self._served is not None:
            self._listener.serve(None)
            self._served.abort()
        self._tell_gateways()
        self._changed.set()

    async def _wait_for_fronts(self) -> None:
        """Wait until they have let go of a store that is about to be closed."""
        self._changed.set()
        await self._let_go.wait()

    async def _change(self) -> None:
        """Bring the fronts to the role of the node, until cancelled."""
        try:
            await self._change_forever()
        except Exception:
            log.critical("the fronts of this node failed", exc_info=True)
            self.ended.set()

    async def _change_forever(self) -> None:
        assert self._store is not None
        while True:
            await self._changed.wait()
            self._changed.clear()
            engine = None if self._member.damage else self._store.engine
            if self._served is not None and self._served.engine is not engine:
                await self._end_service()
            if engine is not None and self._served is None:
                await self._serve(engine)
            elif engine is None:
                local = self._store.local
                if self._store.leader is not None:
                    await self._show(local)
                elif local is not self._followed:  # that is about to be closed
                    await self._show(None)

    async def _serve(self, engine: Engine) -> None:
        """Serve gateways: this node leads."""
        self._let_go.clear()
        config = self.config
        self._tracing.trace_commits(engine)
        self._served = served = ServedStore(engine, config, links_of(config.auth), self._member.confirm, self._clients)
        try:
            await self._show(None)
            pages = HttpPages(engine, served.authority, served.figures, list, config.http, lambda: None, self._member)
            await self._http.show(pages)
            authority, share = served.authority, config.grpc.group_share
            sessions, traffic = served.sessions, self._tracing.store(engine)
            self._rules = rules = EventRules(engine, authority, config.events, share, lambda: served.commits)
            self._schemas = schemas = BoundSchemas(engine)
            limits = rpc_limits(config)
            shadows = Shadows(engine, config.shadow, limits)
            self._shadow_consumer = shadow_consumer = ShadowConsumer(engine, shadows)
            areas = areas_of(
                engine,
                sessions,
                served.services,
                limits,
                config,
                self._reload_all,
                served.figures,
                authority,
                rules,
                schemas,
                shadows,
                traffic,
            )
            self._manage(areas)
            await served.begin()
            await schemas.start()
            rules.start()
            shadow_consumer.start()
            if self._store is not None and self._store.engine is engine:
                served.serve(self._listener)
                log.info("this node leads in epoch %d", self._store.history.epoch)
        except StoreError as error:  # it leads no more: a change of role is on its way
            log.warning("the service of this leader ended before it began: %s", error)

    async def _end_service(self) -> None:
        """End all that uses the engine."""
        self._listener.serve(None)
        self._manage({})
        if self._shadow_consumer is not None:
            await self._shadow_consumer.stop()
        self._shadow_consumer = None
        if self._rules is not None:
            await self._rules.stop()
        self._rules = None
        if self._schemas is not None:
            await self._schemas.stop()
        self._schemas = None
        await self._http.show(None)
        if self._served is not None:
            await self._served.stop()
        self._served = None
        self._let_go.set()

    def _manage(self, areas: Areas) -> None:
        """Serve these services of the management surface, and no others of a store."""
        self._management.end(self._areas)
        self._areas = areas
        self._management.serve(areas)

    async def _show(self, local: LocalStore | None) -> None:
        """Show the copy of a follower over HTTP and to the gateways of this node, or nothing."""
        if local is self._followed and local is not None:
            return
        await self._http.show(None)
        if self._authority is not None:
            await self._authority.stop()
            self._authority = None
        self._followed = local
        self._manage({})
        self._listener.serve_copy(local)
        if local is None:
            if self._served is None:
                self._let_go.set()
        else:
            self._let_go.clear()
            store = cast("Store", local)  # it answers all that reads
            audit, auth = AuditLog(self.config.audit, "follower"), self.config.auth
            wrong = self.config.mqtt.max_wrong_passwords
            self._authority = authority = Authority(store, wrong, audit, auth, links_of(auth))
            storage = StorageService(local, self.config, self._reload_all, dict, authority.service_logins_failed)
            self._manage({"Storage": storage})
            http = self.config.http
            await self._http.show(HttpPages(store, authority, dict, list, http, lambda: None, self._member))
