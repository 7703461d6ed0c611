"""The devices of the demo: MQTT clients in a process of their own that replay readings and answer commands.

They publish with QoS 1, and with `--exactly-once-every N` each Nth of them with QoS 2. They divide themselves among the
nodes of a cluster, and a device whose connection breaks goes to the next node.

A device sends the readings that are due. paho keeps a window of unacknowledged messages, reconnects when a connection
breaks, and resends these messages in order. A device never gives up a reading, and it answers commands to the end. The
whole fleet gives up at its deadline.

The process reads the lines `go` and `enough`; the end of its input also stops it. It writes JSON lines: `{"ready": …}`
when all devices are connected, `{"sent": …, "acked": …}` as progress, and at the end
`{"acknowledged": {device: [[first, last], …]}, "moments": [[[time, count], …], …], …}`. `moments` says for each node
how many acknowledgements it gave at which time, in hundredths of a second since 1970. Its exit code is 0 when
everything was acknowledged, else 1.
"""

import argparse
import contextlib
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import orjson
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sluice.demo.readings import DeviceData, load_fleet
from sluice.demo.tally import to_ranges

_HOST: Final = "127.0.0.1"
_KEEPALIVE: Final = 30  # seconds
_WINDOW: Final = 8  # messages of a device in flight
_RECONNECT_SECONDS: Final = 1
_POLL: Final = 0.02  # seconds
_REPORT: Final = 0.25  # seconds between progress lines


class Device:
    """One device: its data, its progress and its connection. The thread of the connection runs the callbacks."""

    def __init__(self, data: DeviceData, ports: Sequence[int], node: int, qos: int) -> None:
        """ports: of all nodes. node: the index of the one to connect to first."""
        self.data = data
        self.moments: list[Counter[int]] = [Counter() for _ in ports]  # acknowledgements by node and time
        self.acked: set[int] = set()
        self.sent = 0  # readings
        self.resent = 0  # messages sent again
        self.connects = 0
        self.answered = 0
        self._unacked: deque[tuple[int, int]] = deque()  # message ids of paho and sequence numbers
        self._acked_ids: set[int] = set()
        self._is_resending = False  # since a connection ended
        self._client = Client(CallbackAPIVersion.VERSION2, data.device, clean_session=False)
        self._client.max_inflight_messages_set(_WINDOW)
        self._client.reconnect_delay_set(_RECONNECT_SECONDS, _RECONNECT_SECONDS)
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._client.on_message = self._on_message
        self._ports = ports
        self._node = node
        self._qos = qos
        self._client.connect_async(_HOST, ports[node], _KEEPALIVE)
        self._client.loop_start()

    def send_until(self, after: float) -> None:
        """Count acknowledgements, and send the readings that are due when the replay clock shows `after`.

        After a broken connection, nothing is sent before paho has resent everything: it sends a new message as soon as
        it has a socket, which would overtake the others.
        """
        while self._unacked and self._unacked[0][0] in self._acked_ids:
            message_id, seq = self._unacked.popleft()
            self._acked_ids.discard(message_id)
            self.acked.add(seq)
        if self._is_resending:
            if self._unacked or not self._client.is_connected():
                return
            self._is_resending = False
        readings = self.data.readings
        while self.sent < len(readings) and readings[self.sent].after <= after:
            reading = readings[self.sent]
            info = self._client.publish(self.data.topic, self.data.payload(reading, time.time()), self._qos)
            self._unacked.append((info.mid, reading.seq))
            self.sent += 1

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(
        self, client: Client, _data: object, _flags: ConnectFlags, reason: ReasonCode, _: Properties | None
    ) -> None:
        if reason.is_failure:
            return
        if self.connects:
            self.resent += min(_WINDOW, len(self._unacked))
        self.connects += 1
        client.subscribe(f"commands/{self.data.device}", 1)

    def _on_disconnect(
        self, client: Client, data: object, _flags: DisconnectFlags, reason: ReasonCode, _: Properties | None
    ) -> None:
        self._is_resending = True
        if reason.is_failure:
            self._on_connect_fail(client, data)

    def _on_connect_fail(self, client: Client, _data: object) -> None:
        """Let paho connect to the next node."""
        if len(self._ports) > 1:
            self._node = (self._node + 1) % len(self._ports)
            client.connect_async(_HOST, self._ports[self._node], _KEEPALIVE)

    def _on_publish(
        self, _client: Client, _data: object, message_id: int, _reason: ReasonCode, _: Properties | None
    ) -> None:
        self._acked_ids.add(message_id)
        self.moments[self._node][int(time.time() * 100)] += 1

    def _on_message(self, client: Client, _data: object, message: MQTTMessage) -> None:
        """Answer a command with a message that repeats it."""
        with contextlib.suppress(orjson.JSONDecodeError):
            answer = {"device": self.data.device, "done": orjson.loads(message.payload), "readings": self.sent}
            client.publish(f"answers/{self.data.device}", orjson.dumps(answer), qos=1)
            self.answered += 1


def run_fleet(ports: Sequence[int], readings: int, seconds: float, deadline: float, exactly_once_every: int) -> int:
    """Replay about `readings` readings in `seconds`. Give up `deadline` seconds after the start."""
    fleet = load_fleet(readings)
    exactly_once = exactly_once_devices(fleet, exactly_once_every)
    devices = [
        Device(each, ports, number % len(ports), qos=2 if each.device in exactly_once else 1)
        for number, each in enumerate(fleet)
    ]
    speed = max(device.data.readings[-1].after for device in devices) / seconds
    gives_up = time.monotonic() + deadline
    while not all(device.connects for device in devices):
        if time.monotonic() > gives_up:
            return 1
        time.sleep(_POLL)
    _say(ready=len(devices), planned=sum(len(device.data.readings) for device in devices))
    if not sys.stdin.readline():
        return 1
    began = reported = time.monotonic()
    while not select.select([sys.stdin], [], [], _POLL)[0] and (now := time.monotonic()) < began + deadline:
        for device in devices:
            device.send_until((now - began) * speed)
        if now - reported >= _REPORT:
            reported = now
            _say(**_progress(devices))
    for device in devices:
        device.close()
    complete = all(len(device.acked) == len(device.data.readings) for device in devices)
    acknowledged = {device.data.device: to_ranges(device.acked) for device in devices}
    moments = [sorted(sum((each.moments[node] for each in devices), Counter()).items()) for node in range(len(ports))]
    _say(**_progress(devices), acknowledged=acknowledged, moments=moments, complete=complete)
    return 0 if complete else 1


def exactly_once_devices(fleet: Sequence[DeviceData], every: int) -> set[str]:
    """Return the devices that publish with QoS 2: each `every`th one, none with 0."""
    return {each.device for each in fleet[every - 1 :: every]} if every else set()


def _progress(devices: Sequence[Device]) -> dict[str, int]:
    names = ("sent", "resent", "connects", "answered")
    figures = {name: sum(getattr(device, name) for device in devices) for name in names}
    return figures | {"acked": sum(len(device.acked) for device in devices)}


def _say(**line: object) -> None:
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sluice.demo.fleet", description=__doc__)
    parser.add_argument("--port", type=int, required=True, action="append", help="of MQTT; once for each node")
    parser.add_argument("--readings", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--exactly-once-every", type=int, default=0)
    options = parser.parse_args()
    return run_fleet(options.port, options.readings, options.seconds, options.deadline, options.exactly_once_every)


if __name__ == "__main__":
    sys.exit(main())
