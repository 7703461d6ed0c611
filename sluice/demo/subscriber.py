"""MQTT subscribers with a persistent session: the live dashboard (MQTT 5) and the offline device (MQTT 3.1.1).

Each is a paho client with a thread of its own, which reconnects by itself. Only that thread writes the tally; other
threads read its totals.
"""

import threading
import time
from typing import Any, Final

import orjson
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sluice.demo.process import DemoError
from sluice.demo.tally import Tally

_HOST: Final = "127.0.0.1"
_SESSION_SECONDS: Final = 3600  # the session expiry interval in MQTT 5
_RECONNECT_SECONDS: Final = 1
_WAIT_SECONDS: Final = 10


class PersistentSubscriber:
    """A client with one wildcard subscription and a persistent session.

    With the ports of several nodes it goes to the next one when its connection breaks.
    """

    def __init__(self, client_id: str, topic_filter: str, *, version: MQTTProtocolVersion, qos: int = 1) -> None:
        self.tally = Tally()
        self.latencies: list[tuple[float, float]] = []  # (time of sending, seconds until it arrived)
        self.connects = 0
        self._client_id = client_id
        self._filter = topic_filter
        self._qos = qos
        self._ports: tuple[int, ...] = ()
        self._version = version
        self._subscribed = threading.Event()
        five = version is MQTTProtocolVersion.MQTTv5
        self._client = Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=version, clean_session=None if five else False
        )
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.reconnect_delay_set(_RECONNECT_SECONDS, _RECONNECT_SECONDS)

    def connect(self, *ports: int) -> None:
        """Connect to the first port and subscribe. Returns after CONNACK and SUBACK. Raises `DemoError`."""
        self._subscribed.clear()
        self._ports = ports
        try:
            self._choose(ports[0])
            self._client.reconnect()
        except OSError as error:
            raise DemoError(f"{self._client_id} cannot connect: {error}") from error
        self._client.loop_start()
        if not self._subscribed.wait(_WAIT_SECONDS):
            raise DemoError(f"{self._client_id} got no SUBACK within {_WAIT_SECONDS} s")

    def disconnect(self) -> None:
        """Disconnect; the node keeps the session."""
        self._client.disconnect()
        self._client.loop_stop()

    def _choose(self, port: int) -> None:
        """Have paho connect to this port from now on."""
        if self._version is MQTTProtocolVersion.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = _SESSION_SECONDS
            self._client.connect_async(_HOST, port, clean_start=False, properties=properties)
        else:
            self._client.connect_async(_HOST, port)

    def _on_connect_fail(self, _client: Client, _data: object) -> None:
        if len(self._ports) > 1:
            self._ports = (*self._ports[1:], self._ports[0])
            self._choose(self._ports[0])

    def _on_disconnect(
        self, client: Client, data: object, _flags: DisconnectFlags, reason: ReasonCode, _: Properties | None
    ) -> None:
        if reason.is_failure:
            self._on_connect_fail(client, data)

    def _on_connect(
        self, client: Client, _data: object, flags: ConnectFlags, reason: ReasonCode, _properties: Properties | None
    ) -> None:
        if reason.is_failure:
            return
        self.connects += 1
        if flags.session_present:
            self._subscribed.set()
        else:
            client.subscribe(self._filter, self._qos)

    def _on_subscribe(
        self, _client: Client, _data: object, _mid: int, reasons: list[ReasonCode], _properties: Properties | None
    ) -> None:
        if not any(reason.is_failure for reason in reasons):
            self._subscribed.set()

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self._count(orjson.loads(message.payload))

    def _count(self, reading: dict[str, Any]) -> None:
        now = time.time()
        self.tally.add(reading["device"], reading["seq"])
        self.latencies.append((reading["sent"], now - reading["sent"]))


class Operator(PersistentSubscriber):
    """The recipient of alerts, which counts them."""

    def __init__(self, client_id: str, topic_filter: str, *, version: MQTTProtocolVersion) -> None:
        super().__init__(client_id, topic_filter, version=version)
        self.received = 0
        self.alerts: set[tuple[str, str]] = set()  # device, and time of the reading

    def _count(self, reading: dict[str, Any]) -> None:
        self.received += 1
        self.alerts.add((reading["device"], reading["time"]))
