"""The HTTP front: `/health` and `/metrics`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.auth.authority import Authority
from gateway.auth.callers import Caller, Callers
from gateway.auth.refusal import ClientRefused
from gateway.config.services import HttpConfig
from gateway.http.call_metrics import HttpMetrics
from gateway.http.cluster_state import ClusterState
from gateway.http.connect_metrics import ConnectMetrics
from gateway.http.exposition import Collector, Exposition
from gateway.http.group_metrics import GroupMetrics
from gateway.http.metrics import ClusterCollector, Figures, NodeCollector
from gateway.http.store_metrics import StoreMetrics
from gateway.http.topic_metrics import TopicMetrics
from gateway.mqtt.reasons import ReasonCode
from gateway.net.admission import Admission
from gateway.net.bounded_http import BoundedHttp
from gateway.net.proxy_protocol import address_text
from gateway.net.tls import Certificates, name_in, single_certificate
from gateway.observe.calls import Calls
from matcher.reserved import SYS
from store.api import Action, LogStore
from store.engine import Engine
from store.errors import StoreError
from store.local_store import LocalStore

_MAX_CONNECTIONS: Final = 64  # of people and scrapers together
_MAX_BODY: Final = 1 << 20  # bytes of a request
# Of callers that are not admitted; others get 401.
LOGIN_STATUS: Final = {
    ReasonCode.CONNECTION_RATE_EXCEEDED: 429,
    ReasonCode.SERVER_BUSY: 429,
    ReasonCode.SERVER_UNAVAILABLE: 503,
}
_NO_PATH: Final = "- -"  # method and path of requests for what there is not


class HttpPages:
    """`/health` and `/metrics` of one store. Create it on the loop, and `stop` it."""

    def __init__(
        self,
        store: LogStore,
        authority: Authority,
        sources: Callable[[], Mapping[str, Figures]],
        admissions: Callable[[], Sequence[Admission]],
        config: HttpConfig,
        calls: Callable[[], Calls | None],
        cluster: ClusterState | None = None,
    ) -> None:
        """sources, admissions, calls: see `gateway.http.metrics`. config: of callers of `/metrics`, and how many
        topics, groups and tasks these see, which are known where `store` is the engine itself."""
        self.authority = authority
        self._callers = Callers(authority, "http", config.auth)
        self._store = store
        self._cluster = cluster
        collectors: list[Collector] = [
            NodeCollector(store, sources, admissions, authority.service_logins_failed, calls)
        ]
        if isinstance(store, LocalStore):
            collectors.append(StoreMetrics(store))
        if isinstance(store, Engine):
            collectors += [
                TopicMetrics(store, config.metrics_topics),
                GroupMetrics(store, config.metrics_groups),
                ConnectMetrics(store, config.metrics_tasks),
            ]
        if cluster is not None:
            collectors.append(ClusterCollector(cluster))
        self._exposition = Exposition(collectors)

    async def stop(self) -> None:
        await self._callers.stop()

    def health(self) -> web.Response:
        """Answer 200 while the log accepts appends, 503 when it has failed, or no node of the cluster leads it."""
        stats = self._store.stats()
        status = "failed" if stats.failed else "ok"
        body = {"status": status, "log_end": stats.log_end, "checkpoint": stats.checkpoint}
        if stats.is_disk_low:
            body |= {"free_bytes": stats.free_bytes}
        if stats.damaged_places or stats.damage_met:
            body |= {"damaged_places": stats.damaged_places, "damage_met": stats.damage_met}
        if stats.tier is not None and stats.tier.error:
            body |= {"tier": "failing", "tier_waiting_bytes": stats.tier.waiting_bytes}
        return _health(body, self._cluster)

    async def metrics(self, request: web.Request, more: Exposition) -> web.Response:
        """Answer with the metrics. more: what follows them."""
        refusal = await self._refusal(request)
        if refusal is not None:
            return refusal
        return await _metrics(self._exposition, more)

    async def identify(self, request: web.Request) -> Caller:
        """Authenticate a request. Raises ClientRefused and StoreError."""
        certificate = request.get_extra_info("peercert")
        shown = name_in(certificate, "cn") if certificate else None
        return await self._callers.identify(request.headers.get("Authorization"), shown, source_of(request))

    async def _refusal(self, request: web.Request) -> web.Response | None:
        """Answer 401 without authentication, 403 if rules do not allow to subscribe to $SYS/#. None: it is allowed."""
        try:
            caller = await self.identify(request)
        except ClientRefused as refused:
            status = LOGIN_STATUS.get(refused.reason, 401)
            headers = {"WWW-Authenticate": 'Basic realm="sluice", charset="UTF-8"'} if status == 401 else None
            return web.Response(status=status, text=str(refused), headers=headers)
        except StoreError as error:
            return web.Response(status=503, text=str(error))
        if caller.may_read(SYS + b"/#"):
            return None
        caller.note_denied_topic(Action.SUB, SYS + b"/#", "the metrics need it")
        return web.Response(status=403, text="the metrics need permission to subscribe to $SYS/#")


class HttpFront:
    """Listens for people and scrapers. It answers with `pages`. Others may add routes to `app` before the start.

    A node of a cluster has none while it has no log that can be read. `/metrics` has the facts of `/health` then, and
    like that asks nobody who they are: the log has the users.
    """

    def __init__(self, config: HttpConfig, cluster: ClusterState | None = None) -> None:
        self.pages: HttpPages | None = None
        self._config = config
        self._cluster = cluster
        self._without_log = None if cluster is None else Exposition([ClusterCollector(cluster)])
        self._certificates: Certificates | None = None
        self._server = BoundedHttp(_MAX_BODY, _MAX_CONNECTIONS, backlog=128)
        self.app = self._server.app
        calls = Calls()
        self.app.middlewares.append(_counting(calls))
        self._own = Exposition([HttpMetrics(calls)])
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/metrics", self._metrics)

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the bound port. Raises OSError, and TlsError when the certificate cannot be used."""
        config = self._config
        if config.certificate:
            self._certificates = single_certificate("http", "wss", config.certificate, config.key, config.client_ca)
        if self._certificates is None:
            return await self._server.start((host, port))
        return await self._server.start_tls(host, port, self._certificates)

    async def reload(self) -> None:
        """Read the certificate again."""
        if self._certificates is not None:
            await asyncio.to_thread(self._certificates.reload, forced=True)

    async def show(self, pages: HttpPages | None) -> None:
        """Answer with these pages from now on, and stop those of before."""
        before, self.pages = self.pages, pages
        if before is not None:
            await before.stop()

    async def stop(self) -> None:
        await self._server.stop()
        await self.show(None)

    async def _health(self, _request: web.Request) -> web.Response:
        if self.pages is not None:
            return self.pages.health()
        trouble = self._cluster.trouble() if self._cluster is not None else ""
        return _health({"status": trouble or "starting"}, self._cluster)

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.pages is not None:
            return await self.pages.metrics(request, self._own)
        if self._without_log is not None:
            return await _metrics(self._without_log)
        return web.Response(status=503, text="the node has no log yet")


def source_of(request: web.Request) -> str:
    """The address that a request comes from."""
    host, port = request.get_extra_info("peername", ("", 0))[:2]
    return address_text(host, port)


async def _metrics(*expositions: Exposition) -> web.Response:
    text = b"".join([await each.text() for each in expositions])
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _counting(calls: Calls) -> Middleware:
    """Counts requests by verb, path and status."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = monotonic_ns()
        route = request.match_info.route.resource
        # A path that nobody serves has no name of its own: everybody could make some.
        method = _NO_PATH if route is None else f"{request.method} {route.canonical}"
        status = 500
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            calls.count(method, str(status))
            calls.time(method, (monotonic_ns() - began) // 1000)
        return response

    return count


def _health(body: dict[str, object], cluster: ClusterState | None) -> web.Response:
    if cluster is not None:
        body |= cluster.facts()
        if body["status"] == "ok":
            body["status"] = cluster.trouble() or "ok"
    return web.json_response(body, status=200 if body["status"] == "ok" else 503)
