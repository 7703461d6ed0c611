"""The loads of `make bench`: each is a row of the table, with its targets."""

from dataclasses import dataclass, field
from typing import Final, Literal

Mode = Literal["ingest", "fanout", "share", "pipe", "connect"]
# What a target is about. CPU, in µs a unit, is compared with a peer's; the others are absolute.
Measure = Literal["cpu", "p50_ms", "p99_ms", "per_second", "bytes_each"]


@dataclass(slots=True, frozen=True)
class Target:
    """A target of Sluice in a work: at most `limit`, or at least for `per_second`. If `peer` names a broker, `limit` is
    a multiple of that broker's figure."""

    measure: Measure
    limit: float
    peer: str = ""

    @property
    def text(self) -> str:
        sign = "≥" if self.measure == "per_second" else "≤"
        return f"{sign} {self.limit:,.6g}" + (f" × {self.peer}" if self.peer else "")


def against_mosquitto(ratio: float, *more: Target) -> tuple[Target, ...]:
    """Targets for CPU: at most `ratio` times mosquitto's without files, and a tenth of amqtt's."""
    return (Target("cpu", ratio, "mosquitto"), *more, AGAINST_AMQTT)


AGAINST_AMQTT: Final = Target("cpu", 0.1, "amqtt")


@dataclass(slots=True, frozen=True)
class Work:
    """One load. `count` is the number of messages published in the measured part (connect: of connections opened),
    before it is multiplied by a broker's share."""

    name: str
    mode: Mode
    qos: int
    connections: int  # publishers; fanout, share: subscribers; pipe: pairs
    inflight: int  # messages a publisher has on the way; connect: connections that wait for CONNACK
    count: int
    targets: tuple[Target, ...] = ()
    options: tuple[str, ...] = field(default=())  # more of the load generator's
    rate: int = 0  # messages a second, for all brokers the same; 0: as many as they take

    @property
    def unit(self) -> str:
        """What CPU time is divided by: a message received, a message delivered to one subscriber, or a connection."""
        return {"ingest": "message", "connect": "connection"}.get(self.mode, "delivery")

    def units(self, count: int) -> int:
        """The number of units for `count` published messages."""
        return count * self.connections if self.mode == "fanout" else count


_BELOW_NATS: Final = Target("cpu", 1.0, "nats-server")

WORKS: Final = (
    Work("ingest QoS 1, 100 × 20 in flight", "ingest", 1, 100, 20, 200_000, against_mosquitto(0.5)),
    Work(
        "ingest QoS 1, 100 × 20, 5.0 with 3 properties",
        *("ingest", 1, 100, 20, 200_000),
        against_mosquitto(0.5),
        ("--protocol", "5", "--properties"),
    ),
    Work("ingest QoS 1, 1,000 × 1", "ingest", 1, 1000, 1, 100_000, against_mosquitto(1.0)),
    Work(
        "ingest QoS 2, 100 × 20, durable sessions",
        *("ingest", 2, 100, 20, 100_000),
        against_mosquitto(0.4),
        ("--durable",),
    ),
    Work("ingest QoS 0, 100 connections", "ingest", 0, 100, 1, 400_000, against_mosquitto(1.0, _BELOW_NATS)),
    Work("fan-out 1 → 500 QoS 0, 1 in flight", "fanout", 0, 500, 1, 600, against_mosquitto(0.9)),
    Work("fan-out 1 → 500 QoS 0, 16 in flight", "fanout", 0, 500, 16, 600, against_mosquitto(0.25, _BELOW_NATS)),
    Work(
        "fan-out 1 → 500 QoS 0, 16, by wildcard",
        *("fanout", 0, 500, 16, 600),
        against_mosquitto(0.25, _BELOW_NATS),
        ("--wildcard",),
    ),
    Work("fan-out 1 → 500 QoS 1, 1 in flight", "fanout", 1, 500, 1, 400, against_mosquitto(0.9)),
    Work("fan-out 1 → 500 QoS 1, 16 in flight", "fanout", 1, 500, 16, 400, against_mosquitto(0.25)),
    Work(
        "fan-out 1 → 500 QoS 1, 16, by wildcard",
        *("fanout", 1, 500, 16, 400),
        against_mosquitto(0.25),
        ("--wildcard",),
    ),
    Work(
        "drain 1 → 1 QoS 1, 200 in flight, by wildcard",
        *("fanout", 1, 1, 200, 100_000),
        against_mosquitto(0.7),
        ("--wildcard",),
    ),
    Work("share 1 → 4 QoS 1, 20 in flight", "share", 1, 4, 20, 50_000),
    Work("share 1 → 4 QoS 1, 200 in flight", "share", 1, 4, 200, 100_000),
    Work("pipe 50 → 50 QoS 1, 1 in flight", "pipe", 1, 50, 1, 50_000, against_mosquitto(0.7)),
    Work("pipe 50 → 50 QoS 1, 16 in flight", "pipe", 1, 50, 16, 50_000, against_mosquitto(0.7)),
    Work(
        "pipe 10 → 10 QoS 1, 2,000 a second",
        *("pipe", 1, 10, 1, 6_000),
        (Target("p50_ms", 1.0), Target("p99_ms", 5.0)),
        rate=2_000,
    ),
    Work("connect, 50 at a time", "connect", 0, 1, 50, 4_000, (Target("per_second", 15_000),)),
)
