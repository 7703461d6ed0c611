"""What is known of an edge node: its last birth, the names behind aliases, and whether messages are missing."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connect.connectors.sparkplug.proto import sparkplug_b_pb2 as pb

BD_SEQ: Final = "bdSeq"  # the metric that says which death belongs to which birth
_SEQUENCE: Final = 256  # numbers, from 0 on


class Known(NamedTuple):
    """A metric as its birth described it."""

    device: str  # "": of the edge node itself
    name: str
    datatype: int


@dataclass(slots=True)
class EdgeNode:
    """An edge node, as its messages describe it."""

    is_online: bool = False
    is_born: bool = False  # its birth was seen: what it says is understood
    birth_seq: int | None = None  # `bdSeq` of the last birth
    next_seq: int | None = None  # of the next message; None: any
    gaps: int = 0  # places in the sequence where messages are missing
    metrics: dict[tuple[str, str], Known] = field(default_factory=dict)  # by device and name
    aliases: dict[int, Known] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)  # that are online

    def follows(self, seq: int | None) -> bool:
        """Whether a message is the next one. It is taken as the last one in any case."""
        expected, is_next = self.next_seq, True
        if seq is not None:
            is_next = expected is None or seq == expected
            self.next_seq = (seq + 1) % _SEQUENCE
        if not is_next:
            self.gaps += 1
        return is_next

    def begin(self, payload: pb.Payload) -> None:
        """Take a birth of the edge node: all that was known of it and of its devices is over."""
        self.is_born = self.is_online = True
        self.birth_seq = _birth_seq(payload)
        self.next_seq = None
        self.follows(payload.seq if payload.HasField("seq") else None)
        self.metrics.clear()
        self.aliases.clear()
        self.devices.clear()
        self.learn("", payload)

    def begin_device(self, device: str, payload: pb.Payload) -> None:
        """Take the birth of a device."""
        for known in [each for each in self.metrics.values() if each.device == device]:
            del self.metrics[device, known.name]
        self.aliases = {alias: each for alias, each in self.aliases.items() if each.device != device}
        self.devices.add(device)
        self.learn(device, payload)

    def learn(self, device: str, payload: pb.Payload) -> None:
        """Take the names, aliases and data types of a birth."""
        for metric in payload.metrics:
            if not metric.name:
                continue
            known = Known(device, metric.name, metric.datatype)
            self.metrics[device, metric.name] = known
            if metric.HasField("alias"):
                self.aliases[metric.alias] = known

    def is_death_of_this_birth(self, payload: pb.Payload) -> bool:
        """Whether a death is that of the last birth: that of an earlier connection may come later."""
        seq = _birth_seq(payload)
        return seq is None or self.birth_seq is None or seq == self.birth_seq

    def end(self) -> None:
        self.is_online = False
        self.next_seq = None
        self.devices.clear()

    def find(self, device: str, metric: pb.Metric) -> Known | None:
        """What a metric of a message is; None: no birth has described it."""
        if metric.name:
            return self.metrics.get((device, metric.name)) or (
                Known(device, metric.name, metric.datatype) if metric.datatype else None
            )
        known = self.aliases.get(metric.alias) if metric.HasField("alias") else None
        return known if known is not None and known.device == device else None


def _birth_seq(payload: pb.Payload) -> int | None:
    for metric in payload.metrics:
        if metric.name == BD_SEQ:
            return metric.long_value or metric.int_value
    return None
