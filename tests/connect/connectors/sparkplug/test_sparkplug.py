"""Sparkplug B: births, aliases, data types, gaps and deaths, as edge nodes send them; and at a worker."""

import json
import struct
from typing import Any

import pytest

from connect.api import ConnectError, RetriableError, SinkRecord, SourceRecord, read_settings
from connect.connectors.sparkplug.proto import sparkplug_b_pb2 as pb
from connect.connectors.sparkplug.sink import SparkplugSink
from connect.connectors.sparkplug.values import TYPES, value_of
from tests.connect.connectors.harness import Context
from tests.connect.runtime.conftest import Connect, connect, node
from tests.gateway.eventing.rules import eventually

__all__ = ["connect", "node"]  # fixtures

# The NBIRTH of an edge node, written out byte by byte from the specification: timestamp 1486144502122, metric bdSeq = 3
# (UInt64), metric "Node Control/Rebirth" = false, metric "Temperature" with alias 1 = 21.5 (Float), seq 0.
RECORDED_BIRTH = bytes.fromhex(
    "08eaf2f5a8a02b"
    "1209" + "0a05" + b"bdSeq".hex() + "5803"
    "121a" + "0a14" + b"Node Control/Rebirth".hex() + "200b" + "7000"
    "1216" + "0a0b" + b"Temperature".hex() + "1001" + "2009" + "650000ac41"
    "1800"
)


def metric(name: str, kind: str, alias: int | None = None, **value: Any) -> pb.Metric:
    """A metric of a birth."""
    made = pb.Metric(name=name, datatype=TYPES.index(kind), **value)
    if alias is not None:
        made.alias = alias
    return made


def payload(seq: int | None, *metrics: pb.Metric, timestamp: int = 1000) -> bytes:
    made = pb.Payload(timestamp=timestamp, metrics=metrics)
    if seq is not None:
        made.seq = seq
    return made.SerializeToString()


BIRTH = payload(
    0,
    metric("bdSeq", "UInt64", long_value=3),
    metric("Node Control/Rebirth", "Boolean", boolean_value=False),
    metric("temp", "Float", 1, float_value=21.5),
)


class Task:
    """A task, and what it publishes."""

    def __init__(self, **settings: str) -> None:
        self.context = Context()
        self.settings = settings
        self.task = SparkplugSink().task()
        self.position = 0

    async def start(self) -> "Task":
        given = {name.replace("__", "."): value for name, value in self.settings.items()}
        await self.task.start(read_settings(SparkplugSink.settings, given), self.context)
        return self

    def record(self, topic: str, data: bytes) -> SinkRecord:
        self.position += 1
        return SinkRecord(topic, data, payload=data, position=self.position)

    async def put(self, *messages: tuple[str, bytes]) -> dict[str, Any]:
        """The messages that a put publishes, by topic; of commands their topic alone."""
        return await self.put_records([self.record(f"spBv1.0/{topic}", data) for topic, data in messages])

    async def put_records(self, records: list[SinkRecord]) -> dict[str, Any]:
        await self.task.put(records)
        found, self.context.published = self.context.published, []
        return {each.topic: None if "NCMD" in each.topic else json.loads(each.value) for each in found}


async def test_aliases_are_names_and_values_have_types() -> None:
    task = await Task().start()
    found = await task.put(("plant/NBIRTH/edge", BIRTH))
    assert found["sparkplug-state/plant/edge"] == {"online": True, "timestamp": 1000, "bdSeq": 3, "gaps": 0}
    assert found["sparkplug/plant/edge/temp"] == {"value": 21.5, "type": "Float", "timestamp": 1000}
    assert found["sparkplug/plant/edge/Node Control/Rebirth"]["value"] is False
    data = payload(1, pb.Metric(alias=1, float_value=22.5, timestamp=1234), timestamp=2000)
    assert await task.put(("plant/NDATA/edge", data)) == {
        "sparkplug/plant/edge/temp": {"value": 22.5, "type": "Float", "timestamp": 1234}
    }
    birth = payload(2, metric("speed", "Int16", 7, int_value=0xFFFE), metric("a+b#%", "String", 8, string_value="x"))
    found = await task.put(("plant/DBIRTH/edge/pump", birth))
    assert found["sparkplug/plant/edge/pump/speed"] == {"value": -2, "type": "Int16", "timestamp": 1000}
    assert found["sparkplug/plant/edge/pump/a%2Bb%23%25"]["value"] == "x"
    assert found["sparkplug-state/plant/edge/pump"]["online"] is True
    found = await task.put(("plant/DDATA/edge/pump", payload(3, pb.Metric(alias=7, is_null=True))))
    assert found["sparkplug/plant/edge/pump/speed"]["value"] is None
    historical = payload(4, pb.Metric(alias=7, int_value=1, is_historical=True))
    assert await task.put(("plant/DDATA/edge/pump", historical)) == {}
    assert task.context.rejected == []


async def test_a_birth_as_it_is_on_the_wire() -> None:
    task = await Task().start()
    found = await task.put(("G/NBIRTH/E", RECORDED_BIRTH))
    assert found["sparkplug-state/G/E"]["bdSeq"] == 3
    assert found["sparkplug/G/E/Temperature"] == {"value": 21.5, "type": "Float", "timestamp": 1486144502122}


async def test_a_death_marks_the_node_and_its_devices_and_an_old_one_nothing() -> None:
    task = await Task().start()
    await task.put(("g/NBIRTH/e", BIRTH), ("g/DBIRTH/e/d", payload(1)))
    old, own = (payload(None, metric("bdSeq", "UInt64", long_value=each)) for each in (2, 3))
    assert await task.put(("g/NDEATH/e", old)) == {}
    found = await task.put(("g/NDEATH/e", own))
    assert {topic: each["online"] for topic, each in found.items()} == {
        "sparkplug-state/g/e": False,
        "sparkplug-state/g/e/d": False,
    }
    await task.put(("g/NBIRTH/e", BIRTH), ("g/DBIRTH/e/d", payload(1)))
    found = await task.put(("g/DDEATH/e/d", payload(2)))
    assert found == {"sparkplug-state/g/e/d": {"online": False, "timestamp": 1000}}


async def test_missing_messages_are_counted_and_a_birth_is_asked_for_once_a_minute() -> None:
    task = await Task().start()
    await task.put(("g/NBIRTH/e", BIRTH))
    found = await task.put(("g/NDATA/e", payload(2, pb.Metric(alias=1, float_value=1))))
    assert found["sparkplug-state/g/e"]["gaps"] == 1
    assert "spBv1.0/g/NCMD/e" in found
    found = await task.put(("g/NDATA/e", payload(9, pb.Metric(alias=1, float_value=1))))
    assert found["sparkplug-state/g/e"]["gaps"] == 2
    assert "spBv1.0/g/NCMD/e" not in found
    await task.put(("g/NDATA/e", payload(255)))
    assert "sparkplug-state/g/e" not in await task.put(("g/NDATA/e", payload(0)))


async def test_what_no_birth_has_described_is_asked_for() -> None:
    task = await Task().start()
    await task.task.put([task.record("spBv1.0/g/NDATA/e", payload(7, pb.Metric(alias=1, float_value=1)))])
    (command,) = task.context.published
    asked = pb.Payload.FromString(command.value)
    assert (command.topic, command.retain, command.qos) == ("spBv1.0/g/NCMD/e", False, 0)
    assert (asked.metrics[0].name, asked.metrics[0].boolean_value) == ("Node Control/Rebirth", True)
    silent = await Task(sparkplug__rebirth__enabled="false").start()
    assert await silent.put(("g/NDATA/e", payload(7, pb.Metric(alias=1, float_value=1)))) == {}


async def test_messages_of_a_put_are_taken_in_the_order_of_the_log() -> None:
    task = await Task().start()
    birth = task.record("spBv1.0/g/NBIRTH/e", BIRTH)
    data = task.record("spBv1.0/g/NDATA/e", payload(1, pb.Metric(alias=1, float_value=5)))
    assert (await task.put_records([data, birth]))["sparkplug/g/e/temp"]["value"] == 5


async def test_a_put_that_comes_again_is_published_and_makes_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    task = await Task().start()
    records = [task.record("spBv1.0/g/NBIRTH/e", BIRTH), task.record("spBv1.0/g/NDATA/e", payload(1))]

    async def away(_context: Context, _records: list[SourceRecord]) -> None:
        raise RetriableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(Context, "publish", away)
        with pytest.raises(RetriableError):
            await task.task.put(records)
    found = await task.put_records(records)
    assert found["sparkplug-state/g/e"]["gaps"] == 0
    assert found["sparkplug/g/e/temp"]["value"] == 21.5


async def test_what_is_rejected() -> None:
    task = await Task(sparkplug__max__metrics="3").start()
    await task.put(
        ("g/NBIRTH/e", b"\xff\xff"),
        ("g/NBIRTH/e/d", BIRTH),
        ("g/NBIRTH/other", BIRTH),
        ("g/NBIRTH/e", payload(0, *[metric(str(each), "Int8", int_value=1) for each in range(4)])),
        ("g/NDATA/other", payload(1, metric("t", "Int32Array", bytes_value=b"123"))),
    )
    assert [str(error).split(":")[0] for _, error in task.context.rejected] == [
        "the payload is not one of Sparkplug B",
        "'spBv1.0/g/NBIRTH/e/d' is no topic of Sparkplug B",
        "there are more than 3 metrics (sparkplug.max.metrics)",
        "3 bytes are no Int32Array",
    ]
    assert await task.put(("STATE/host", b"{}"), ("g/NCMD/e", b"\xff"), ("g/DCMD/e/d", b"\xff")) == {}
    task.context.task = 1
    with pytest.raises(ConnectError, match=r"tasks\.max"):
        await task.start()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("Int8", {"int_value": 0xFF}, -1),
        ("Int32", {"int_value": 0xFFFFFFFF}, -1),
        ("UInt32", {"int_value": 0xFFFFFFFF}, 4294967295),
        ("Int64", {"long_value": 2**64 - 5}, -5),
        ("UInt64", {"long_value": 2**64 - 5}, 2**64 - 5),
        ("Double", {"double_value": float("inf")}, "inf"),
        ("DateTime", {"long_value": 1486144502122}, 1486144502122),
        ("Bytes", {"bytes_value": b"\x00\xff"}, "AP8="),
        ("Int16Array", {"bytes_value": struct.pack("<2h", -30000, 5)}, [-30000, 5]),
        ("DoubleArray", {"bytes_value": struct.pack("<d", 2.5)}, [2.5]),
        ("BooleanArray", {"bytes_value": b"\x0c\0\0\0\x34\xd0"}, [c == "1" for c in "001101001101"]),
        ("StringArray", {"bytes_value": b"ABC\0hello\0"}, ["ABC", "hello"]),
        ("Int32", {}, None),
    ],
)
def test_values_by_data_type(kind: str, value: dict[str, Any], expected: Any) -> None:
    assert value_of(metric("m", kind, **value), kind) == expected


def test_tables_and_templates() -> None:
    rows = [pb.DataSet.Row(elements=[pb.DataSet.Value(int_value=0xFE), pb.DataSet.Value(string_value="a")])]
    types = [TYPES.index("Int8"), TYPES.index("String")]
    table = metric("t", "DataSet", dataset_value=pb.DataSet(columns=["n", "s"], types=types, rows=rows))
    assert value_of(table, "DataSet") == {"columns": ["n", "s"], "types": ["Int8", "String"], "rows": [[-2, "a"]]}
    inner = pb.Template(template_ref="pump", metrics=[metric("rpm", "Int32", int_value=7)])
    assert value_of(metric("p", "Template", template_value=inner), "Template") == {"rpm": 7}


async def test_at_a_worker_last_values_are_retained(connect: Connect) -> None:
    await connect.set("spb", {"connector.class": "sparkplug-sink", "topics": "spBv1.0/#", "value.converter": "raw"})
    await connect.client.send("spBv1.0/g/NBIRTH/e", BIRTH)
    async with connect.worker() as worker:
        await connect.until_state(worker, "spb", "RUNNING")
        await connect.client.send("spBv1.0/g/NDATA/e", payload(1, pb.Metric(alias=1, float_value=30)))
        engine = connect.node.engine

        async def is_there() -> bool:
            return any(b'"value":30' in each.frame for each in await engine.retained(b"sparkplug/#", None, 100))

        await eventually(is_there)
        found = await engine.retained(b"sparkplug/#", None, 100)
        assert {each.topic.decode() for each in found} >= {"sparkplug/g/e/temp", "sparkplug/g/e/bdSeq"}
        assert (await engine.retained(b"sparkplug-state/#", None, 100))[0].topic == b"sparkplug-state/g/e"
