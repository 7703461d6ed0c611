"""Prometheus metrics of a node, collected on each scrape. A store has those of its gateways, labelled by name."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.http.call_metrics import grpc_metrics
from gateway.http.cluster_state import ClusterState
from gateway.http.histograms import add_histogram
from gateway.net.admission import Admission
from gateway.observe.calls import Calls, read_histogram
from gateway.observe.process_figures import count_open_files, process_figures
from store.api import LogStore, TierStats
from store.histogram import LATENCIES_US

Figures = Mapping[str, int]  # as `gateway.node.devices` has them

# Name, help text, and the name of the counter.
_COUNTERS: Final = (
    ("sluice_mqtt_connections_opened", "Network connections accepted", "connections_opened"),
    ("sluice_mqtt_connections_refused", "Connections refused", "connections_refused"),
    ("sluice_mqtt_connections_closed", "Connections ended", "connections_closed"),
    ("sluice_mqtt_messages_received", "PUBLISH packets accepted", "messages_received"),
    ("sluice_mqtt_messages_refused", "PUBLISH packets not accepted", "messages_refused"),
    ("sluice_mqtt_messages_denied", "PUBLISH packets denied by rules", "messages_denied"),
    ("sluice_mqtt_messages_unheld", "Delayed messages refused because of store.max_held", "messages_unheld"),
    ("sluice_payloads_refused", "Messages refused because of their schema", "payloads_refused"),
    ("sluice_payloads_marked", "Messages marked because of their schema", "payloads_marked"),
    ("sluice_payloads_quarantined", "Messages in quarantine because of their schema", "payloads_quarantined"),
    ("sluice_mqtt_subscriptions_denied", "Filters denied by rules", "subscriptions_denied"),
    ("sluice_mqtt_logins_failed", "Wrong user names and passwords", "logins_failed"),
    ("sluice_mqtt_messages_sent", "PUBLISH packets sent", "messages_sent"),
    ("sluice_mqtt_messages_replayed", "Messages sent that are older than their subscription", "messages_replayed"),
    ("sluice_mqtt_messages_unreached", "Messages to inboxes of clients without a session", "messages_unreached"),
    ("sluice_mqtt_bytes_received", "Bytes read from clients", "bytes_received"),
    ("sluice_mqtt_bytes_sent", "Bytes handed to clients", "bytes_sent"),
    ("sluice_mqtt_protocol_errors", "Connections closed for a protocol error", "protocol_errors"),
    ("sluice_mqtt_publishers_paced", "Times a publisher was delayed by its publish rate", "publishers_paced"),
    ("sluice_mqtt_takeovers", "Sessions taken over by a new connection", "takeovers"),
    ("sluice_mqtt_shared_messages", "Messages given to members of shared subscriptions", "shared_sent"),
    ("sluice_mqtt_shared_returned", "Messages given back for other members", "shared_returned"),
    ("sluice_mqtt_wills_sent", "Will messages published", "wills_sent"),
    ("sluice_mqtt_wills_denied", "Wills denied by rules", "wills_denied"),
    ("sluice_mqtt_users_full", "Clients refused because their user has too many connections", "users_full"),
    (
        "sluice_mqtt_connects_too_fast",
        "Clients refused because they or their user connect too often",
        "connects_too_fast",
    ),
    ("sluice_mqtt_sessions_full", "Clients refused because there are too many sessions", "sessions_full"),
    ("sluice_mqtt_subscriptions_full", "Filters refused because of a limit on their number", "subscriptions_full"),
    ("sluice_mqtt_sessions_denied", "Clients refused because of another user's client id", "sessions_denied"),
)
_GAUGES: Final = (
    ("sluice_mqtt_connections", "Open network connections", "connections"),
    ("sluice_mqtt_shared_groups", "Shared subscriptions with members connected", "shared_groups"),
    ("sluice_mqtt_shared_members", "Members connected", "shared_members"),
)
_LINK_COUNTERS: Final = (
    ("sluice_gateway_reconnects", "Streams to the store that broke", "store_reconnects"),
    ("sluice_gateway_gaps", "Times that the gateway missed commits", "store_gaps"),
    ("sluice_gateway_copy_reads", "Reads that the node's own copy of a shared log answered", "copy_reads"),
)
_CLUSTER: Final = {
    "leads": "1 while this node leads the cluster",
    "epoch": "Number of the newest claim to lead that this node knows",
    "slot": "Newest slot of the shared log that this node has",
    "position": "Log position behind that slot",
    "silence_seconds": "Time since this node got a slot; a follower that is behind, or has no leader, gets none",
    "unreached_seconds": "Time since the service of the shared log does not answer; 0 while it does",
}
_PROCESS: Final = (
    (CounterMetricFamily, "process_cpu_seconds", "CPU time", "cpu_ms", 1000),
    (GaugeMetricFamily, "process_resident_memory_bytes", "Memory in use", "resident_bytes", 1),
    (GaugeMetricFamily, "process_open_fds", "Open file descriptors", "open_files", 1),
    (GaugeMetricFamily, "process_max_fds", "File descriptors that may be open", "max_files", 1),
    (GaugeMetricFamily, "process_start_time_seconds", "Start, since 1970-01-01", "started_ms", 1000),
)
_SPANS_DROPPED: Final = (
    ("rate", "spans_dropped_rate"),
    ("queue", "spans_dropped_queue"),
    ("export", "spans_dropped_export"),
)
_DROPPED: Final = (
    ("qos0_congested", "dropped_qos0"),
    ("oversized", "dropped_oversized"),
    ("expired", "dropped_expired"),
    ("reclaimed", "dropped_reclaimed"),
    ("qos0_repeated", "dropped_repeated"),
)


class ClusterCollector:
    """Collect what a node says about its cluster. It needs no store."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    async def collect(self) -> Iterable[Metric]:
        return [
            GaugeMetricFamily(f"sluice_cluster_{name}", _CLUSTER[name], value=value)
            for name, value in self._cluster.figures().items()
        ]


class NodeCollector:
    """Collect the metrics of a node.

    sources: figures by gateway; the key "" is the node itself. admissions: of the node's own listeners.
    service_logins_failed: by front, see `gateway.auth.authority`. calls: of gRPC; None without it.
    """

    def __init__(
        self,
        store: LogStore,
        sources: Callable[[], Mapping[str, Figures]],
        admissions: Callable[[], Sequence[Admission]],
        service_logins_failed: Mapping[str, int],
        calls: Callable[[], Calls | None],
    ) -> None:
        self._store = store
        self._sources = sources
        self._admissions = admissions
        self._service_logins_failed = service_logins_failed
        self._calls = calls

    async def collect(self) -> Iterable[Metric]:
        return [
            *self._device_metrics(),
            *self._listener_metrics(),
            *self._service_metrics(),
            *self._store_metrics(),
            *await self._process_metrics(),
        ]

    def _device_metrics(self) -> Iterable[Metric]:
        sources = self._sources()
        for counter in _COUNTERS:
            yield _by_gateway(CounterMetricFamily, *counter, sources)
        for gauge in _GAUGES:
            yield _by_gateway(GaugeMetricFamily, *gauge, sources)
        labels = [] if "" in sources else ["gateway"]
        text = "Messages not delivered"
        dropped = CounterMetricFamily("sluice_mqtt_messages_dropped", text, labels=[*labels, "reason"])
        for gateway, figures in sources.items():
            for reason, key in _DROPPED:
                dropped.add_metric([gateway, reason] if labels else [reason], figures.get(key, 0))
        yield dropped
        text = "Time from a commit to the sockets of the clients that get its messages, of some commits"
        delivery = HistogramMetricFamily("sluice_mqtt_delivery_seconds", text, labels=labels)
        for gateway, figures in sources.items():
            histogram = read_histogram(figures, "delivery", LATENCIES_US)
            add_histogram(delivery, [gateway] if labels else [], histogram, 1_000_000)
        yield delivery
        linked = {name: each for name, each in sources.items() if "store_reconnects" in each}
        if linked:  # gateways that are processes of their own
            for counter in _LINK_COUNTERS:
                yield _by_gateway(CounterMetricFamily, *counter, linked)
            text = "Bytes the store has not answered"
            name = "sluice_gateway_pending_bytes"
            yield _by_gateway(GaugeMetricFamily, name, text, "store_pending_bytes", linked)

    def _service_metrics(self) -> Iterable[Metric]:
        """Those of this process, and, labelled by name, those of gateways in processes of their own."""
        gateways = {name: each for name, each in self._sources().items() if name and "service_calls" in each}
        labels = ["gateway"] if gateways else []
        text = "Wrong user names and passwords"
        failed = CounterMetricFamily("sluice_service_logins_failed", text, labels=[*labels, "front"])
        for front, count in self._service_logins_failed.items():
            failed.add_metric([*[""] * len(labels), front], count)
        calls = GaugeMetricFamily("sluice_service_calls", "Calls of cloud services under way", labels=labels)
        own = self._calls()
        by_gateway: dict[str, Calls] = {}
        if own is not None:
            calls.add_metric([""] * len(labels), own.under_way)
            by_gateway[""] = own
        for name, figures in gateways.items():
            failed.add_metric([name, "grpc"], figures["service_logins_failed"])
            calls.add_metric([name], figures["service_calls"])
            by_gateway[name] = each = Calls()
            each.add(figures)
        yield failed
        if by_gateway:
            yield calls
            yield from grpc_metrics(by_gateway, labels)

    async def _process_metrics(self) -> Iterable[Metric]:
        """Those of this process, and, labelled by name, those of gateways in processes of their own."""
        own = process_figures()
        if "open_files" not in own:
            own["open_files"] = await asyncio.to_thread(count_open_files)
        others = {name: each for name, each in self._sources().items() if name and "cpu_ms" in each}
        labels = ["gateway"] if others else []
        found: list[Metric] = []
        for kind, metric, text, key, per_unit in _PROCESS:
            family = kind(metric, text, labels=labels)
            for name, figures in {"": own, **others}.items():
                if key in figures:
                    family.add_metric([name] * len(labels), figures[key] / per_unit)
            found.append(family)
        collections = CounterMetricFamily(
            "python_gc_collections", "Collections of garbage cycles", labels=[*labels, "generation"]
        )
        for name, figures in {"": own, **others}.items():
            for generation in range(3):
                count = figures.get(f"gc_collections:{generation}", 0)
                collections.add_metric([*[name] * len(labels), str(generation)], count)
        return [*found, collections, *_span_metrics({"": own, **others}, labels)]

    def _listener_metrics(self) -> Iterable[Metric]:
        accepted = CounterMetricFamily("sluice_mqtt_listener_accepted", "Connections accepted", labels=["listener"])
        text = "Connections that ended before CONNECT, or were refused because of a limit"
        refused = CounterMetricFamily("sluice_mqtt_listener_refused", text, labels=["listener", "reason"])
        held = GaugeMetricFamily("sluice_mqtt_listener_connections", "Open connections", labels=["listener"])
        for admission in self._admissions():
            accepted.add_metric([admission.name], admission.accepted)
            held.add_metric([admission.name], admission.open)
            for reason, count in (
                ("full", admission.refused_full),
                ("rate", admission.refused_rate),
                ("proxy", admission.refused_proxy),
                ("tls", admission.refused_tls),
                ("late", admission.refused_late),
            ):
                refused.add_metric([admission.name, reason], count)
        yield from (accepted, refused, held)

    def _store_metrics(self) -> Iterable[Metric]:
        stats = self._store.stats()
        yield CounterMetricFamily("sluice_store_records", "Records appended", value=stats.records)
        yield CounterMetricFamily("sluice_store_messages", "Messages appended", value=stats.messages)
        yield CounterMetricFamily("sluice_store_batches", "Batches committed", value=stats.batches)
        for name, text, value in (
            ("sluice_store_failed", "1 when the log accepts no more appends", int(stats.failed)),
            ("sluice_store_log_begin", "First readable position", stats.log_begin),
            ("sluice_store_log_end", "Position behind the last record", stats.log_end),
            ("sluice_store_checkpoint", "Position up to which the views are on disk", stats.checkpoint),
            ("sluice_store_log_bytes", "Bytes of log segments on disk", stats.log_bytes),
            ("sluice_store_view_bytes", "Bytes of views on disk", stats.view_bytes),
            ("sluice_store_free_bytes", "Bytes free on the disk of the log", stats.free_bytes),
            ("sluice_store_disk_low", "1 when fewer are free than retention is to leave", int(stats.is_disk_low)),
            ("sluice_store_tail_bytes", "Bytes in the tail cache", stats.tail_bytes),
            ("sluice_store_sessions", "Durable sessions", stats.sessions),
            ("sluice_store_retained", "Retained values", stats.retained),
            ("sluice_store_entries", "Entries of buckets", stats.entries),
            ("sluice_store_entry_bytes", "Names, keys and values of the entries of buckets", stats.entry_bytes),
            ("sluice_store_held", "Held messages: delayed, or half of a transaction", stats.held),
            ("sluice_store_transactions", "Messages of open transactions", stats.halves),
            ("sluice_store_delayed", "Messages that wait for their time alone", stats.held - stats.halves),
            ("sluice_store_pending_bytes", "Bytes accepted and not yet committed", stats.pending_bytes),
            ("sluice_store_damaged_places", "Damaged places of the log that are served around", stats.damaged_places),
            ("sluice_store_damaged_bytes", "Bytes in damaged places that are served around", stats.damaged_bytes),
            ("sluice_store_damage_met", "Other places where reads met damage since the start", stats.damage_met),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        if stats.tier is not None:
            yield from _tier_metrics(stats.tier)


def _span_metrics(sources: Mapping[str, Figures], labels: list[str]) -> Iterable[Metric]:
    """Those of processes in which traces are switched on."""
    tracing = {name: figures for name, figures in sources.items() if "spans_exported" in figures}
    if not tracing:
        return
    exported = CounterMetricFamily("sluice_otel_spans_exported", "Spans that the collector has", labels=labels)
    dropped = CounterMetricFamily("sluice_otel_spans_dropped", "Spans that it did not get", labels=[*labels, "reason"])
    for name, figures in tracing.items():
        exported.add_metric([name] * len(labels), figures["spans_exported"])
        for reason, key in _SPANS_DROPPED:
            dropped.add_metric([*[name] * len(labels), reason], figures[key])
    yield from (exported, dropped)


def _tier_metrics(tier: TierStats) -> Iterable[Metric]:
    for name, text, value in (
        ("sluice_tier_segments", "Segments of the log in the tier", tier.segments),
        ("sluice_tier_object_bytes", "Bytes of their objects", tier.object_bytes),
        ("sluice_tier_local_begin", "Position from which on segments are on this disk", tier.local_begin),
        ("sluice_tier_waiting_bytes", "Bytes in closed segments that are not in the tier yet", tier.waiting_bytes),
        ("sluice_tier_cache_bytes", "Bytes of old segments in memory", tier.cache_bytes),
        ("sluice_tier_failing", "1 when the last request to write or to read failed", int(bool(tier.error))),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    yield CounterMetricFamily("sluice_tier_reads", "Requests for blocks of old segments", value=tier.reads)
    yield CounterMetricFamily("sluice_tier_hits", "Blocks of old segments found in memory", value=tier.hits)
    yield CounterMetricFamily("sluice_tier_errors", "Requests to the tier that failed", value=tier.errors)


def _by_gateway(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, key: str, sources: Mapping[str, Figures]
) -> Metric:
    """A metric of the gateways, labelled by name unless there is only this node."""
    labels = [] if "" in sources else ["gateway"]
    family = kind(name, text, labels=labels)
    for gateway, figures in sources.items():
        family.add_metric([gateway] if labels else [], figures.get(key, 0))
    return family
