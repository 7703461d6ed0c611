"""What is measured: one entry a row of the table."""

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["ingest", "fanout", "pipe"]


@dataclass(slots=True, frozen=True)
class Work:
    """One load. `count` is the messages published in the measured part, before a broker's own share."""

    name: str
    mode: Mode
    qos: int
    connections: int  # publishers; fanout: subscribers; pipe: pairs
    inflight: int  # messages a publisher has on the way
    count: int

    @property
    def unit(self) -> str:
        """What CPU time is divided by: a message taken in, or a message handed to one subscriber."""
        return "message" if self.mode == "ingest" else "delivery"

    def units(self, count: int) -> int:
        """How many of `unit` there are in `count` published messages."""
        return count * self.connections if self.mode == "fanout" else count


WORKS: Final = (
    Work("ingest QoS 1, 100 × 20 in flight", "ingest", 1, 100, 20, 200_000),
    Work("ingest QoS 1, 1,000 × 1", "ingest", 1, 1000, 1, 100_000),
    Work("ingest QoS 0, 100 connections", "ingest", 0, 100, 1, 400_000),
    Work("fan-out 1 → 500 QoS 0, 1 in flight", "fanout", 0, 500, 1, 600),
    Work("fan-out 1 → 500 QoS 0, 16 in flight", "fanout", 0, 500, 16, 600),
    Work("fan-out 1 → 500 QoS 1, 1 in flight", "fanout", 1, 500, 1, 400),
    Work("fan-out 1 → 500 QoS 1, 16 in flight", "fanout", 1, 500, 16, 400),
    Work("pipe 50 → 50 QoS 1, 1 in flight", "pipe", 1, 50, 1, 50_000),
    Work("pipe 50 → 50 QoS 1, 16 in flight", "pipe", 1, 50, 16, 50_000),
)
