"""What the task of `sparkplug-sink` does.

The rules of the file:

* Messages of a put are taken in the order of the log. What they say is known in memory alone: after a restart, an edge
  node is asked for a birth as soon as it says something that is not understood.
* A value is published once its name is known. Others are passed over: the birth that is asked for brings the present
  value of all metrics.
* If publishing fails, the put comes again. Its messages are not taken a second time, which would look like a gap.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import orjson
from google.protobuf.message import DecodeError

from connect.api import ConnectError, DataError, Settings, SinkContext, SinkRecord, SinkTask, SourceRecord
from connect.connectors.sparkplug.edge_node import EdgeNode
from connect.connectors.sparkplug.proto import sparkplug_b_pb2 as pb
from connect.connectors.sparkplug.values import BOOLEAN, type_name, value_of

_NAMESPACE: Final = "spBv1.0"
_REBIRTH: Final = "Node Control/Rebirth"
_REBIRTH_S: Final = 60.0  # between two requests to one edge node
_MAX_NODES: Final = 100_000
_SLICE: Final = 64  # messages, after which others have their turn
_SIGNS: Final = str.maketrans({"%": "%25", "+": "%2B", "#": "%23", "\0": "%00"})


class SparkplugSinkTask(SinkTask):
    """Has what is known of all edge nodes."""

    async def start(self, settings: Settings, context: SinkContext) -> None:
        if context.task:
            raise ConnectError("one task has to see all messages of an edge node: set tasks.max to 1")
        self._context = context
        self._prefix: str = settings["sparkplug.topic.prefix"]
        self._asks: bool = settings["sparkplug.rebirth.enabled"]
        self._most: int = settings["sparkplug.max.metrics"]
        self._nodes: dict[tuple[str, str], EdgeNode] = {}  # by group and name
        self._asked: dict[tuple[str, str], float] = {}  # when a birth was asked for, loop time
        self._count = 0  # metrics of all nodes
        self._taken: set[int] = set()  # positions of the messages behind `_out`
        self._out: list[SourceRecord] = []  # that are not published yet

    async def put(self, records: Sequence[SinkRecord]) -> None:
        for number, record in enumerate(sorted(records, key=lambda each: each.position), 1):
            if record.position not in self._taken:
                try:
                    self._take(record)
                except DataError as error:
                    self._context.reject(record, error)
                else:
                    self._taken.add(record.position)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        await self._context.publish(self._out)
        self._out.clear()
        self._taken.clear()

    def _take(self, record: SinkRecord) -> None:
        """Take a message. Raises `DataError`."""
        levels = record.topic.split("/")
        if levels[0] != _NAMESPACE or len(levels) not in (4, 5):
            return  # such as STATE of a host application
        _, group, kind, node, *rest = levels
        if kind not in ("NBIRTH", "NDEATH", "NDATA", "DBIRTH", "DDEATH", "DDATA"):
            return  # commands
        if len(rest) != (kind[0] == "D"):
            raise DataError(f"{record.topic[:200]!r} is no topic of Sparkplug B")
        try:
            payload = pb.Payload.FromString(record.value)
        except DecodeError:
            raise DataError("the payload is not one of Sparkplug B") from None
        self._handle((group, node), kind, rest[0] if rest else "", payload)

    def _handle(self, where: tuple[str, str], kind: str, device: str, payload: pb.Payload) -> None:
        node = self._nodes.get(where)
        if node is None:
            if len(self._nodes) >= _MAX_NODES:
                raise DataError(f"there are {_MAX_NODES} edge nodes, which is the limit")
            node = self._nodes[where] = EdgeNode()
        if kind == "NDEATH":
            if node.is_death_of_this_birth(payload):
                devices = sorted(node.devices)
                node.end()
                for each in ("", *devices):
                    self._tell(where, each, payload, is_online=False)
            return
        values = [(metric, self._read(node, device, metric, kind)) for metric in payload.metrics]
        if kind == "NBIRTH":
            self._require_room(len(node.metrics), payload)
            self._count -= len(node.metrics)
            node.begin(payload)
            self._count += len(node.metrics)
            self._tell(where, "", payload, is_online=True)
        else:
            is_next = node.follows(payload.seq if payload.HasField("seq") else None)
            if not (is_next and node.is_born):
                self._ask(where)
            if not is_next:
                self._tell(where, "", payload, is_online=node.is_online)
        if kind == "DBIRTH":
            self._require_room(sum(each.device == device for each in node.metrics.values()), payload)
            self._count -= len(node.metrics)
            node.begin_device(device, payload)
            self._count += len(node.metrics)
            self._tell(where, device, payload, is_online=True)
        elif kind == "DDEATH":
            node.devices.discard(device)
            self._tell(where, device, payload, is_online=False)
            return
        for metric, value in values:
            known = node.find(device, metric)
            if known is None:
                self._ask(where)
            elif not metric.is_historical:
                self._publish(where, known.device, known.name, _row(metric, known.datatype, payload, value))

    def _read(self, node: EdgeNode, device: str, metric: pb.Metric, kind: str) -> Any:
        """The value of a metric. Raises `DataError`, before anything of the message is taken."""
        known = None if kind.endswith("BIRTH") else node.find(device, metric)
        return value_of(metric, type_name(metric.datatype if known is None else known.datatype))

    def _require_room(self, replaced: int, payload: pb.Payload) -> None:
        if self._count - replaced + len(payload.metrics) > self._most:
            raise DataError(f"there are more than {self._most} metrics (sparkplug.max.metrics)")

    def _publish(self, where: tuple[str, str], device: str, name: str, row: dict[str, Any]) -> None:
        parts = (self._prefix, *where, device, name) if device else (self._prefix, *where, name)
        self._send("/".join(parts), row)

    def _tell(self, where: tuple[str, str], device: str, payload: pb.Payload, *, is_online: bool) -> None:
        """Publish whether an edge node or a device is online."""
        node = self._nodes[where]
        row: dict[str, Any] = {"online": is_online, "timestamp": payload.timestamp or None}
        if not device:
            row |= {"bdSeq": node.birth_seq, "gaps": node.gaps}
        parts = (f"{self._prefix}-state", *where, device) if device else (f"{self._prefix}-state", *where)
        self._send("/".join(parts), row)

    def _send(self, topic: str, row: dict[str, Any]) -> None:
        topic = topic.translate(_SIGNS)
        self._out.append(SourceRecord(topic, orjson.dumps(row), content_type="application/json", retain=True))

    def _ask(self, where: tuple[str, str]) -> None:
        """Ask an edge node for a birth."""
        now = asyncio.get_running_loop().time()
        if not self._asks or now - self._asked.get(where, -_REBIRTH_S) < _REBIRTH_S:
            return
        self._asked[where] = now
        command = pb.Payload(timestamp=time.time_ns() // 1_000_000)
        command.metrics.add(name=_REBIRTH, datatype=BOOLEAN, boolean_value=True)
        topic = f"{_NAMESPACE}/{where[0]}/NCMD/{where[1]}"
        self._out.append(SourceRecord(topic, command.SerializeToString(), qos=0))


def _row(metric: pb.Metric, datatype: int, payload: pb.Payload, value: Any) -> dict[str, Any]:
    timestamp = metric.timestamp if metric.HasField("timestamp") else payload.timestamp
    return {"value": value, "type": type_name(datatype), "timestamp": timestamp or None}
