"""Publishing in order, with a bounded number of messages in flight.

paho runs its network loop in a thread of its own, because standard input may be silent for longer than the keep-alive
interval. One condition guards the state that the two threads share.
"""

import threading
from typing import Final

from paho.mqtt import client as paho
from paho.mqtt.client import ConnectFlags, DisconnectFlags
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sluice.console.command import Arguments
from sluice.mqtt import connection
from sluice.mqtt.connection import BrokerError

WINDOW: Final = 100  # messages given to paho and not acknowledged yet
ACK_TIMEOUT: Final = 30.0  # seconds without an acknowledgement while messages are in flight


class Publisher:
    """A connection for publishing. Call `connect`, then `publish` for each message, then `finish`; always `close`."""

    __slots__ = ("_arguments", "_change", "_client", "_connected", "_error", "_properties", "acknowledged", "sent")

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._change = threading.Condition()
        self._connected = False
        self._error: BrokerError | None = None
        self.sent = 0
        self.acknowledged = 0  # for QoS 0: written to the socket
        self._properties = connection.properties_of(arguments, "publish")
        self._client = connection.make_client(arguments)
        self._client.max_inflight_messages_set(WINDOW)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish

    def connect(self) -> None:
        """Connect and wait for the CONNACK. Raises `BrokerError`."""
        connection.start_connect(self._client, self._arguments)
        self._client.loop_start()
        with self._change:
            if not self._change.wait_for(lambda: self._connected or self._error, connection.CONNECT_TIMEOUT):
                raise BrokerError(f"no CONNACK within {connection.CONNECT_TIMEOUT:g} s")
            self._raise_error()

    def publish(self, payload: bytes) -> None:
        """Send one message. Waits while the window is full. Raises `BrokerError`, and `ValueError` for a bad topic."""
        self._wait_in_flight(WINDOW - 1)
        with self._change:
            self.sent += 1
        arguments = self._arguments
        self._client.publish(arguments.topic, payload, arguments.qos, arguments.retain, self._properties)

    def finish(self) -> None:
        """Wait until every message is acknowledged. Raises `BrokerError`."""
        self._wait_in_flight(0)

    def close(self) -> None:
        """Disconnect, if connected, and end the thread."""
        self._client.disconnect()
        self._client.loop_stop()

    def _wait_in_flight(self, limit: int) -> None:
        with self._change:
            while not self._error and self.sent - self.acknowledged > limit:
                before = self.acknowledged
                self._change.wait(ACK_TIMEOUT)
                if self.acknowledged == before and not self._error:
                    raise BrokerError(f"no acknowledgement for {ACK_TIMEOUT:g} s")
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error:
            raise self._error

    def _fail(self, error: BrokerError) -> None:
        with self._change:
            self._error = self._error or error
            self._change.notify_all()
        self._client.disconnect()  # otherwise the thread of paho would connect again

    def _on_connect(
        self,
        _client: paho.Client,
        _data: object,
        _flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            self._fail(connection.refused(reason, properties))
            return
        with self._change:
            self._connected = True
            self._change.notify_all()

    def _on_disconnect(
        self,
        _client: paho.Client,
        _data: object,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure or flags.is_disconnect_packet_from_server:
            self._fail(connection.lost(reason, properties))

    def _on_publish(
        self, _client: paho.Client, _data: object, _mid: int, reason: ReasonCode, _: Properties | None
    ) -> None:
        if reason.is_failure:
            self._fail(BrokerError(f"the broker rejected a message: {reason}"))
            return
        with self._change:
            self.acknowledged += 1
            self._change.notify_all()
