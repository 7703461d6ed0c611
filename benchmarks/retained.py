"""`python -m benchmarks.retained`, which `make bench-retained` calls: very many retained values, and who asks for all.

Values are set, then a client subscribes to `#` and reads as fast as it can, with QoS 0 and QoS 1, and one that reads
slowly. Another client pings all the time: what it waits for is what everybody else would. Each run checks that every
value comes, once and in order of nothing else than itself.
"""

import argparse
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers import Broker, BrokerUnavailable
from benchmarks.comparison import peers
from benchmarks.offline import Probe, names

OWN: Final = "sluice"
_PAYLOAD: Final = b"21.5 C, 40.0 % r"
_TOPIC: Final = b"site/%04d/sensor/%04d"
_HEAD: Final = 2 + 2 + len(_TOPIC % (0, 0))  # of a PUBLISH, up to the packet id
_SUBACK: Final = 0x90
_SUBACK_SIZE: Final = 5
_WINDOW: Final = 1000
_TIMEOUT: Final = 60.0
_SLOW_BYTES: Final = 32 * 1024  # read by the slow client …
_SLOW_PAUSE: Final = 0.05  # … so many seconds apart
_READ: Final = 1 << 18

Told = dict[str, Any]


class Incomplete(Exception):
    """A broker did not send all retained messages, or sent something else."""


class Client:
    """An MQTT 3.1.1 connection."""

    def __init__(self, port: int, client_id: bytes, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(_TIMEOUT)
        self.socket.connect(("127.0.0.1", port))
        body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client_id).to_bytes(2) + client_id
        self.socket.sendall(bytes([0x10, len(body)]) + body)
        self.read(4)
        self._rest = b""

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            some = self.socket.recv(size - len(data))
            if not some:
                raise Incomplete("the broker closed the connection")
            data += some
        return data

    def subscribe(self, qos: int) -> None:
        """Subscribe to `#`. Some brokers send retained messages before SUBACK; `packets` returns those too."""
        self.socket.sendall(b"\x82\x06\x00\x01\x00\x01#" + bytes([qos]))

    def packets(self, qos: int, at_once: int = _READ) -> Iterator[list[bytes]]:
        """The packets of what came, a read at a time; SUBACK is left out. All values are of one size."""
        size = _HEAD + 2 * (qos > 0) + len(_PAYLOAD)
        has_suback = False
        data = b""
        while True:
            some = self.socket.recv(at_once)
            if not some:
                raise Incomplete("the broker closed the connection")
            data += some
            at = -1 if has_suback else next((at for at in range(0, len(data), size) if data[at] == _SUBACK), -1)
            if at >= 0 and len(data) < at + _SUBACK_SIZE:
                continue
            if at >= 0:
                data, has_suback = data[:at] + data[at + _SUBACK_SIZE :], True
            count = len(data) // size
            yield [data[start : start + size] for start in range(0, count * size, size)]
            data = data[count * size :]

    def close(self) -> None:
        self.socket.close()


def topic(number: int) -> bytes:
    return _TOPIC % (number // 10_000, number % 10_000)


def keep(port: int, count: int) -> None:
    """Set the retained messages, with QoS 1 and a thousand in flight."""
    client = Client(port, b"keeper")
    for first in range(0, count, _WINDOW):
        packets = []
        for number in range(first, min(first + _WINDOW, count)):
            name = topic(number)
            body = len(name).to_bytes(2) + name + (number % _WINDOW + 1).to_bytes(2) + _PAYLOAD
            packets.append(bytes([0x33, len(body)]) + body)
        client.socket.sendall(b"".join(packets))
        client.read(4 * len(packets))
    client.close()


def ask(broker: Broker, count: int, qos: int, is_slow: bool, limit: int) -> Told:
    """Subscribe to `#` and read `limit` of `count` retained messages. Raises `Incomplete`."""
    client = Client(broker.port, b"reader", 64 * 1024 if is_slow else 0)
    memory, cpu, began = broker.memory(), broker.cpu_seconds(), time.monotonic()
    probe = Probe(broker.port)
    most = 0
    seen: set[bytes] = set()
    try:
        client.subscribe(qos)
        for packets in client.packets(qos, _SLOW_BYTES if is_slow else _READ):
            if qos:
                at = _HEAD
                client.socket.sendall(b"".join([b"\x40\x02" + packet[at : at + 2] for packet in packets]))
            seen.update([packet[4:_HEAD] for packet in packets])
            most = max(most, broker.memory())
            if len(seen) >= limit:
                break
            if is_slow:
                time.sleep(_SLOW_PAUSE)
        seconds, used = time.monotonic() - began, broker.cpu_seconds() - cpu
    except TimeoutError as error:
        raise Incomplete(f"{len(seen):,} of {limit:,} values came") from error
    finally:
        probe.stop()
        client.close()
    if limit == count and seen != {topic(number) for number in range(count)}:
        raise Incomplete("other values came than were set")
    return {
        "values": len(seen),
        "per_second": len(seen) / seconds,
        "cpu_us": used * 1e6 / len(seen),
        "memory_growth_mb": (most - memory) / 1e6,
        "ping_ms": probe.latencies(),
    }


def measure(name: str, count: int, folder: Path) -> Told:
    """Measure a newly started broker. Raises `BrokerUnavailable` and `Incomplete`."""
    broker = peers.start(name, folder / name)
    try:
        memory, cpu, began = broker.memory(), broker.cpu_seconds(), time.monotonic()
        keep(broker.port, count)
        seconds = time.monotonic() - began
        figures: Told = {
            "broker": name,
            "set": {
                "values": count,
                "per_second": count / seconds,
                "cpu_us": (broker.cpu_seconds() - cpu) * 1e6 / count,
                "memory_growth_mb": (broker.memory() - memory) / 1e6,
            },
            "bytes_a_value": (broker.memory() - memory) / count,
        }
        figures["QoS 0"] = ask(broker, count, 0, False, count)
        figures["QoS 1"] = ask(broker, count, 1, False, count)
        figures["slow, QoS 0"] = ask(broker, count, 0, True, count // 10)
        figures["slow, QoS 1"] = ask(broker, count, 1, True, count // 10)
    finally:
        broker.stop()
    return figures


def show(figures: Told) -> None:
    """The results as text."""
    print(f"\n{figures['broker']}: {figures['bytes_a_value']:.0f} bytes of memory a value")
    for name, each in figures.items():
        if not isinstance(each, dict):
            continue
        line = f"  {name:<12} {each['values']:>9,} {each['per_second']:>10,.0f}/s {each['cpu_us']:>7.2f} µs of CPU each"
        line += f"  {each['memory_growth_mb']:+8.1f} MB"
        if "ping_ms" in each:
            ping = each["ping_ms"]
            line += f"  others wait: p50 {ping['p50']:.1f} p99 {ping['p99']:.1f} max {ping['max']:.0f} ms"
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-retained",
        description="Sets very many retained values, and has clients ask for all of them.",
        epilog="example:\n  make bench-retained ARGS='--values 100000 --brokers sluice'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--values", type=int, default=1_000_000, help="default: 1000000")
    parser.add_argument("--brokers", type=names, default=(OWN, "mosquitto"), help="default: sluice,mosquitto")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="the disk to measure on (default: build)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="retained-", dir=arguments.folder)).absolute()
    results: list[Told] = []
    try:
        for name in arguments.brokers:
            results.append(measure(name, arguments.values, folder))
            show(results[-1])
    except (BrokerUnavailable, Incomplete) as error:
        print(f"bench-retained: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
