"""The `$SYS` tree: figures of the node as topics whose values behave like retained messages.

The values are state of the running node. They are not in the log, no session queues them, and clients get them with QoS
0: all current values when they subscribe, then those that change. Names and formats are mosquitto's; `docs/mqtt.md`
lists them.
"""

import asyncio
from collections.abc import Mapping
from importlib.metadata import version
from math import exp
from time import monotonic, time
from typing import Final

import record
from gateway.broker.client_ownership import ClientOwnership
from gateway.connection.connection import Connection
from gateway.delivery.router import Router
from gateway.observe.counters import Counters
from gateway.session.message_encoding import Message
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from matcher.names import matches
from matcher.reserved import SYS
from record.layout import FLAG_RETAIN, Kind
from store.api import LogStore

_MINUTES: Final = (1, 5, 15)
_VERSION: Final = f"sluice {version('sluicemq')}".encode()  # which parses the package's metadata


class _Load:
    """Moving averages of the growth of a total per minute, over 1, 5 and 15 minutes."""

    __slots__ = ("_averages", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._averages = [0.0 for _ in _MINUTES]

    def add(self, total: int, seconds: float) -> list[float]:
        """Update with the total after `seconds` more. Returns the averages."""
        rate = max(total - self._total, 0) * 60 / seconds  # the total shrinks when a gateway leaves
        self._total = total
        for i, minutes in enumerate(_MINUTES):
            weight = exp(-seconds / (60 * minutes))
            self._averages[i] = self._averages[i] * weight + rate * (1 - weight)
        return self._averages


class SysTopics:
    """Publishes the figures of one node, and of the other gateways of its store."""

    def __init__(
        self,
        store: LogStore,
        router: Router,
        counters: Counters,
        open_sessions: Mapping[bytes, tuple[Session, Connection]],
        interval_s: int,
        ownership: ClientOwnership,
    ) -> None:
        self._store = store
        self._ownership = ownership
        # A compiled class has no `vars`: its fields are in `dir`.
        self._totals = [name for name in dir(counters) if not name.startswith("_")]
        self._open_sessions = open_sessions
        self._router = router
        self._counters = counters
        self._interval = interval_s  # 0: there is no tree
        self._began = self._last = monotonic()
        self._values: dict[bytes, Message] = {}
        self._loads: dict[bytes, _Load] = {}
        self._most_clients = 0

    async def run(self) -> None:
        """Publish changes periodically."""
        while self._interval:
            self.publish_changes(monotonic())
            await asyncio.sleep(self._interval)

    def publish_changes(self, now: float) -> None:
        """Send the figures that have changed to their subscribers. now: monotonic seconds."""
        seconds = now - self._last
        self._last = now
        now_ms = int(time() * 1000)
        for name, text in self._figures(now, seconds).items():
            topic = b"%b/broker/%b" % (SYS, name)
            known = self._values.get(topic)
            if known is not None and known.payload == text:
                continue
            message = Message(record.frame(int(Kind.MESSAGE), FLAG_RETAIN, 0, topic, b"", b"", text), 0)
            self._values[topic] = message
            for route in self._router.routes(topic):
                route.session.send_unlogged(message, route.retain_as_published, route.identifiers, now_ms)

    def send_values(self, subscription: Subscription) -> None:
        """Send a new subscription the values that match it."""
        now_ms = int(time() * 1000)
        for topic, message in self._values.items():
            if matches(subscription.topic_filter, topic):
                subscription.session.send_unlogged(message, True, subscription.route.identifiers, now_ms)

    def _figures(self, now: float, seconds: float) -> dict[bytes, bytes]:
        counters = self.figures()
        for name, value in self._ownership.others.items():
            counters[name] = counters.get(name, 0) + value
        stats = self._store.stats()
        clients = counters["connected"]
        away = max(0, stats.sessions - counters["durable"])
        self._most_clients = max(self._most_clients, clients)
        dropped = sum(counters["dropped_" + why] for why in ("qos0", "oversized", "expired", "reclaimed"))
        figures: dict[bytes, int] = {
            b"clients/connected": clients,
            b"clients/disconnected": away,
            b"clients/total": clients + away,
            b"clients/maximum": self._most_clients,
            b"messages/received": counters["messages_received"],
            b"messages/sent": counters["messages_sent"],
            b"publish/messages/received": counters["messages_received"],
            b"publish/messages/sent": counters["messages_sent"],
            b"publish/messages/dropped": dropped,
            b"bytes/received": counters["bytes_received"],
            b"bytes/sent": counters["bytes_sent"],
            b"retained messages/count": stats.retained,
            b"subscriptions/count": counters["subscriptions"],
            b"store/messages/bytes": stats.log_end - stats.log_begin,
        }
        texts = {b"version": _VERSION, b"uptime": b"%d seconds" % (now - self._began)}
        texts.update({name: b"%d" % value for name, value in figures.items()})
        if seconds > 0:
            texts.update(self._load_texts(counters, seconds, dropped))
        return texts

    def figures(self) -> dict[str, int]:
        """The figures of this node."""
        now = {
            "connected": len(self._open_sessions),
            "durable": sum([session.durable for session, _ in self._open_sessions.values()]),
            "subscriptions": self._router.subscriptions,
        }
        counters = self._counters
        return {name: getattr(counters, name) for name in self._totals} | now

    def _load_texts(self, counters: Mapping[str, int], seconds: float, dropped: int) -> dict[bytes, bytes]:
        texts: dict[bytes, bytes] = {}
        for name, total in (
            (b"messages/received", counters["messages_received"]),
            (b"messages/sent", counters["messages_sent"]),
            (b"publish/received", counters["messages_received"]),
            (b"publish/sent", counters["messages_sent"]),
            (b"publish/dropped", dropped),
            (b"bytes/received", counters["bytes_received"]),
            (b"bytes/sent", counters["bytes_sent"]),
            (b"connections", counters["connections_opened"]),
        ):
            averages = self._loads.setdefault(name, _Load()).add(total, seconds)
            for minutes, average in zip(_MINUTES, averages, strict=True):
                texts[b"load/%b/%dmin" % (name, minutes)] = b"%.2f" % average
        return texts
