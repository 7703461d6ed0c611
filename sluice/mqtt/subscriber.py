"""Receiving messages on the calling thread, up to a number of messages or a time limit."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from paho.mqtt import client as paho
from paho.mqtt.client import ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from gateway.topics.replay_range import is_bounded, split_replay
from matcher.reserved import REPLAY_END
from sluice.console.command import Arguments
from sluice.mqtt import connection
from sluice.mqtt.connection import BrokerError

POLL: Final = 0.5  # seconds that one turn of the network loop waits at most
LEAVE_TIMEOUT: Final = 2.0  # seconds to wait for the broker to close the connection after DISCONNECT
DISCONNECT: Final = b"\xe0\x00"  # normal disconnection, in 3.1.1 and 5.0


class Subscriber:
    """A connection that passes every message to `show`. Call `run` once, then `close`."""

    __slots__ = ("_arguments", "_client", "_error", "_left", "_properties", "_replays", "_show", "_subscribed")

    def __init__(self, arguments: Arguments, show: Callable[[MQTTMessage], None]) -> None:
        self._arguments = arguments
        self._show = show
        self._left: int | None = None  # messages still to receive; None: no limit
        names = {topic.encode() for topic in arguments.topic}
        has_ends = all(is_bounded(split_replay(name)[0]) for name in names)
        self._replays = len(names) if has_ends else 0  # whose ends are awaited; 0: other messages may follow
        self._subscribed = False
        self._error: BrokerError | None = None
        self._properties = connection.properties_of(arguments, "subscribe")
        self._client = connection.make_client(arguments, arguments.session)
        self._client.manual_ack_set(True)  # acknowledge only what was shown; the session keeps the rest
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def run(self, count: int | None, timeout: float | None) -> bool:
        """Receive `count` messages (None: no limit) for at most `timeout` seconds.

        Return whether all of them arrived, or all that replays with an end have. Raises `BrokerError`.
        """
        self._left = count
        started = time.monotonic()
        connection.start_connect(self._client, self._arguments, self._arguments.session)
        while self._left != 0:
            elapsed = time.monotonic() - started
            if timeout is not None and elapsed >= timeout:
                return False
            if not self._subscribed and elapsed >= connection.CONNECT_TIMEOUT:
                raise BrokerError(f"no subscription within {connection.CONNECT_TIMEOUT:g} s")
            wait = POLL if timeout is None else min(POLL, timeout - elapsed)
            code = self._client.loop(wait)
            if self._error:
                raise self._error
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS and self._left != 0:
                raise connection.lost(code)
        return True

    def close(self) -> None:
        """Disconnect, if connected, so that the broker reads the last acknowledgements.

        paho's `disconnect` closes the socket at once. If the socket has unread bytes, that resets the connection, and
        the broker loses everything that it has not read yet.
        """
        sock: Any = self._client.socket()
        if sock is not None:
            deadline = time.monotonic() + LEAVE_TIMEOUT
            raw = getattr(sock, "_socket", sock)  # paho wraps the socket of a WebSocket
            with contextlib.suppress(OSError):
                raw.settimeout(LEAVE_TIMEOUT)
                while self._client.want_write() and time.monotonic() < deadline:
                    self._client.loop_write()
                sock.send(DISCONNECT)
                raw.shutdown(socket.SHUT_WR)
                while time.monotonic() < deadline and raw.recv(65536):
                    pass
        self._client.disconnect()

    def _on_connect(
        self,
        client: paho.Client,
        _data: object,
        _flags: ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            self._error = connection.refused(reason, properties)
            return
        filters = [(topic_filter, self._arguments.qos) for topic_filter in self._arguments.topic]
        client.subscribe(filters, properties=self._properties)

    def _on_disconnect(
        self,
        _client: paho.Client,
        _data: object,
        _flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._error = self._error or connection.lost(reason, properties)

    def _on_subscribe(
        self, _client: paho.Client, _data: object, _mid: int, reasons: list[ReasonCode], _: Properties | None
    ) -> None:
        for topic_filter, reason in zip(self._arguments.topic, reasons, strict=False):
            if reason.is_failure:
                self._error = BrokerError(f"the broker refused the filter {topic_filter}: {reason}")
                return
        self._subscribed = True

    def _on_message(self, client: paho.Client, _data: object, message: MQTTMessage) -> None:
        if self._left == 0:
            return  # arrived in the same read as the last message
        if self._left is not None:
            self._left -= 1
        if self._replays and message.topic == REPLAY_END.decode():
            self._replays -= 1
            if not self._replays:
                self._left = 0
        self._show(message)
        client.ack(message.mid, message.qos)
