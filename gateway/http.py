"""The HTTP front: `/health` and `/metrics`."""

import asyncio
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.bind import is_local
from gateway.counters import Counters
from gateway.front import MqttFront
from gateway.listen import IDLE_SECONDS, REQUESTS, bound_port, listen
from store.api import Store

_MAX_CONNECTIONS: Final = 64  # of people and scrapers together


class HttpFront:
    """Serves people and Prometheus."""

    def __init__(self, store: Store, counters: Counters, front: MqttFront) -> None:
        self._store = store
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(store, counters, front))
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port. Raises OSError."""
        app = web.Application(client_max_size=64 * 1024)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app, access_log=None, logger=REQUESTS, shutdown_timeout=1.0, keepalive_timeout=IDLE_SECONDS
        )
        await self._runner.setup()
        self._listener = await listen(self._runner, host, port, self._has_room)
        return bound_port(self._listener)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self._listener is not None and is_local(self._listener.sockets)

    def _has_room(self) -> bool:
        server = self._runner.server if self._runner is not None else None
        return server is not None and len(server.connections) < _MAX_CONNECTIONS

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        """200 while the log takes appends, 503 when it has failed."""
        stats = self._store.stats()
        status = "failed" if stats.failed else "ok"
        body = {"status": status, "log_end": stats.log_end, "checkpoint": stats.checkpoint}
        if stats.damaged_places or stats.damage_met:
            body |= {"damaged_places": stats.damaged_places, "damage_met": stats.damage_met}
        return web.json_response(body, status=503 if stats.failed else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


class _NodeCollector:
    """Reads the node's counters when Prometheus asks."""

    def __init__(self, store: Store, counters: Counters, front: MqttFront) -> None:
        self._store = store
        self._counters = counters
        self._front = front

    def collect(self) -> Iterable[Metric]:
        counters = self._counters
        replayed = counters.messages_replayed
        unreached = counters.messages_unreached
        for name, text, count in (
            ("sluice_mqtt_connections_opened", "Network connections accepted", counters.connections_opened),
            ("sluice_mqtt_connections_refused", "Connections refused", counters.connections_refused),
            ("sluice_mqtt_connections_closed", "Connections ended", counters.connections_closed),
            ("sluice_mqtt_messages_received", "PUBLISH packets accepted", counters.messages_received),
            ("sluice_mqtt_messages_refused", "PUBLISH packets not accepted", counters.messages_refused),
            ("sluice_mqtt_messages_denied", "PUBLISH packets that rules do not allow", counters.messages_denied),
            ("sluice_mqtt_subscriptions_denied", "Filters that rules do not allow", counters.subscriptions_denied),
            ("sluice_mqtt_logins_failed", "Wrong user names and passwords", counters.logins_failed),
            ("sluice_mqtt_messages_sent", "PUBLISH packets sent", counters.messages_sent),
            ("sluice_mqtt_messages_replayed", "Messages sent that were older than their subscription", replayed),
            ("sluice_mqtt_messages_unreached", "Messages to inboxes of clients without a session", unreached),
            ("sluice_mqtt_bytes_received", "Bytes read from clients", counters.bytes_received),
            ("sluice_mqtt_protocol_errors", "Connections closed for a protocol error", counters.protocol_errors),
            ("sluice_mqtt_publishers_paced", "Times a fast publisher was made to wait", counters.publishers_paced),
            ("sluice_mqtt_takeovers", "Sessions taken over by a new connection", counters.takeovers),
            ("sluice_mqtt_shared_messages", "Messages given to members of shared subscriptions", counters.shared_sent),
            ("sluice_mqtt_shared_returned", "Of those, taken back for other members", counters.shared_returned),
            ("sluice_mqtt_wills_sent", "Will messages published", counters.wills_sent),
            ("sluice_mqtt_wills_denied", "Wills that might not be sent any more", counters.wills_denied),
            ("sluice_mqtt_sessions_denied", "Clients with a client id of another user", counters.sessions_denied),
        ):
            yield CounterMetricFamily(name, text, value=count)
        dropped = CounterMetricFamily("sluice_mqtt_messages_dropped", "Messages not delivered", labels=["reason"])
        dropped.add_metric(["qos0_congested"], counters.dropped_qos0)
        dropped.add_metric(["oversized"], counters.dropped_oversized)
        dropped.add_metric(["expired"], counters.dropped_expired)
        dropped.add_metric(["reclaimed"], counters.dropped_reclaimed)
        dropped.add_metric(["qos0_repeated"], counters.dropped_repeated)
        yield dropped
        yield GaugeMetricFamily(
            "sluice_mqtt_connections", "Open network connections", value=len(self._front.connections)
        )
        text = "Shared subscriptions with members connected"
        yield GaugeMetricFamily("sluice_mqtt_shared_groups", text, value=counters.shared_groups)
        yield GaugeMetricFamily("sluice_mqtt_shared_members", "Members connected", value=counters.shared_members)
        yield from self._listener_metrics()
        yield from self._store_metrics()

    def _listener_metrics(self) -> Iterable[Metric]:
        accepted = CounterMetricFamily("sluice_mqtt_listener_accepted", "Connections accepted", labels=["listener"])
        text = "Connections that did not get as far as CONNECT, or heard that there is no place"
        refused = CounterMetricFamily("sluice_mqtt_listener_refused", text, labels=["listener", "reason"])
        held = GaugeMetricFamily("sluice_mqtt_listener_connections", "Open connections", labels=["listener"])
        for gate in self._front.gates:
            accepted.add_metric([gate.name], gate.accepted)
            held.add_metric([gate.name], gate.open)
            for reason, count in (
                ("full", gate.refused_full),
                ("rate", gate.refused_rate),
                ("proxy", gate.refused_proxy),
                ("tls", gate.refused_tls),
                ("late", gate.refused_late),
            ):
                refused.add_metric([gate.name, reason], count)
        yield from (accepted, refused, held)

    def _store_metrics(self) -> Iterable[Metric]:
        stats = self._store.stats()
        yield CounterMetricFamily("sluice_store_records", "Records appended", value=stats.records)
        yield CounterMetricFamily("sluice_store_messages", "Messages appended", value=stats.messages)
        yield CounterMetricFamily("sluice_store_batches", "Batches committed", value=stats.batches)
        for name, text, value in (
            ("sluice_store_failed", "1 when the log takes no more appends", int(stats.failed)),
            ("sluice_store_log_begin", "First readable position", stats.log_begin),
            ("sluice_store_log_end", "Position behind the last record", stats.log_end),
            ("sluice_store_checkpoint", "Position up to which the views are on disk", stats.checkpoint),
            ("sluice_store_log_bytes", "Bytes of log segments on disk", stats.log_bytes),
            ("sluice_store_view_bytes", "Bytes of views on disk", stats.view_bytes),
            ("sluice_store_tail_bytes", "Bytes in the tail cache", stats.tail_bytes),
            ("sluice_store_sessions", "Durable sessions", stats.sessions),
            ("sluice_store_pending_bytes", "Bytes accepted and not yet committed", stats.pending_bytes),
            ("sluice_store_damaged_places", "Damaged places of the log that are served around", stats.damaged_places),
            ("sluice_store_damaged_bytes", "Bytes in damaged places that are served around", stats.damaged_bytes),
            ("sluice_store_damage_met", "Other places where reads met damage since the start", stats.damage_met),
        ):
            yield GaugeMetricFamily(name, text, value=value)
