"""The memory that an idle connection costs a broker, over TCP and over TLS.

A broker that has served a load has freed memory, and new connections would seem to cost nothing. So each broker is
started anew, and the connections of earlier rounds stay open.
"""

import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection, socket
from typing import Final

from benchmarks.brokers import Broker
from benchmarks.comparison import peers
from benchmarks.comparison.figures import NOTHING, Figure, Sample, figure
from benchmarks.comparison.works import Target

SETTLE_SECONDS: Final = 0.5  # until what was allocated to open connections is given back
TIMEOUT: Final = 10.0  # seconds for an answer


@dataclass(slots=True, frozen=True)
class Idle:
    """Connections over one transport. `count` are opened in a round."""

    name: str
    tls: bool
    count: int
    targets: tuple[Target, ...]


IDLE: Final = (
    Idle("idle connection, TCP", False, 1_000, (Target("bytes_each", 2 * 1024),)),
    Idle("idle connection, TLS", True, 500, (Target("bytes_each", 26 * 1024),)),
)


def run_idle(
    works: Sequence[Idle], names: Sequence[str], folder: Path, rounds: int, report: Callable[[str], None]
) -> list[Figure]:
    """Measure the memory of idle connections at the named brokers. Raises `BrokerUnavailable`."""
    figures = []
    for name in names:
        broker = peers.start(name, folder / f"idle-{name}")
        try:
            for work in works:
                report(f"{work.name}: {name}")
                samples = measured(work, broker, rounds)
                figures.append(figure(work.name, "connection", name, samples, work.targets))
        finally:
            broker.stop()
    return sorted(figures, key=lambda each: [work.name for work in works].index(each.work))


def measured(work: Idle, broker: Broker, rounds: int) -> list[Sample]:
    """The growth of the broker in each round."""
    if work.tls and not broker.tls_port:
        return [NOTHING]
    samples: list[Sample] = []
    with ExitStack() as held:
        try:
            _grow(work, broker, held, "warm", work.count // 5)
            for number in range(rounds):
                samples.append(_grow(work, broker, held, str(number), work.count))
        except OSError:  # refused, or no answer
            samples.append(NOTHING)
    return samples


def _grow(work: Idle, broker: Broker, held: ExitStack, round_name: str, count: int) -> Sample:
    """Open connections and measure how much the broker grew. `held` closes them. Raises OSError."""
    before, cpu, started = broker.memory(), broker.cpu_seconds(), time.monotonic()
    for number in range(count):
        held.enter_context(connected(broker, work.tls, f"idle-{work.tls:d}-{round_name}-{number}"))
    seconds = time.monotonic() - started
    time.sleep(SETTLE_SECONDS)
    used = broker.cpu_seconds() - cpu
    return Sample(True, count, seconds, used, 0.0, None, None, max(broker.memory() - before, 1))


def connected(broker: Broker, tls: bool, client_id: str) -> socket:
    """Open an MQTT 3.1.1 connection and wait for CONNACK. Raises OSError."""
    client = create_connection(("127.0.0.1", broker.tls_port if tls else broker.port), TIMEOUT)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = context.wrap_socket(client)
    name = client_id.encode()
    body = b"\x00\x04MQTT\x04\x02\x01\x2c" + len(name).to_bytes(2) + name  # keep-alive 300 s
    client.sendall(bytes([0x10, len(body)]) + body)
    answer = client.recv(4)
    if answer[:1] != b"\x20" or answer[3:] != b"\x00":
        client.close()
        raise ConnectionRefusedError(f"CONNACK {answer.hex()}")
    return client
