"""Will messages: published when a connection ends without a clean DISCONNECT (MQTT-3.1.2-8)."""

import asyncio
import logging
from time import time

from gateway.address import address, framed
from gateway.counters import Counters
from gateway.mqtt.packets import Will
from record.layout import FLAG_RETAIN
from store.api import Appended, Store

log = logging.getLogger(__name__)


class Wills:
    """Sends wills, at once or after their delay."""

    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._delayed: dict[bytes, tuple[asyncio.TimerHandle, Will]] = {}  # at most one per client id

    def send(self, client_id: bytes, will: Will, expiry_interval: int) -> None:
        """Publish when the will delay has passed or the session ends, whichever comes first (MQTT-3.1.3-9)."""
        delay = min(will.delay_interval, expiry_interval)
        if delay == 0:
            self._publish(client_id, will)
            return
        self.cancel(client_id)
        self._delayed[client_id] = (self._loop.call_later(delay, self._due, client_id), will)

    def send_now(self, client_id: bytes) -> None:
        """The session has ended before the will delay passed (MQTT-3.1.3-9)."""
        if client_id in self._delayed:
            self._delayed[client_id][0].cancel()
            self._due(client_id)

    def cancel(self, client_id: bytes) -> None:
        """The client is back in time: its will is not sent."""
        delayed = self._delayed.pop(client_id, None)
        if delayed is not None:
            delayed[0].cancel()

    def stop(self) -> None:
        """Drop the timers."""
        for client_id in list(self._delayed):
            self.cancel(client_id)

    def _due(self, client_id: bytes) -> None:
        _timer, will = self._delayed.pop(client_id)
        self._publish(client_id, will)

    def _publish(self, client_id: bytes, will: Will) -> None:
        flags = will.qos | (FLAG_RETAIN if will.retain else 0)
        where = address(will.topic, int(time() * 1000))  # `$delayed/…` counts from here
        self._counters.wills_sent += 1
        self._store.append([framed(where, flags, 0, client_id, will.properties, will.payload)], self._done)

    @staticmethod
    def _done(appended: Appended) -> None:
        if appended.error is not None:
            log.error("a will could not be stored: %s", appended.error)
