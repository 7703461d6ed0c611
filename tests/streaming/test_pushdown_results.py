"""Filters that the source looks at never change what a query finds: it reads no less than what they leave, and no more
than what those leave that Spark does not evaluate again."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from cloud_sdk import Client, OutgoingMessage
from cloud_sdk.arrow import SCHEMA
from cloud_sdk.blocking import Client as BlockingClient
from gateway.auth.authority import Authority
from gateway.node.rpc_server import RpcServer
from gateway.rpc.limits import RpcLimits
from store.config import StoreConfig
from store.engine import Engine
from streaming.history.delta_table import DeltaFolder
from streaming.history.export import Exporter
from streaming.source.batch import BatchReader
from streaming.source.options import SourceOptions

TOPICS: Final = ("a", "a/", "a/x", "a/x/t", "a/y z", "a/é", "b/x", "/a", "$q/x")
OPTIONS: Final[list[dict[str, str]]] = [
    {"parent": '["a", "b", "", "$q"]'},
    {"parent": "a"},
    {"filter": "#"},
    {"filter": "+/x/#"},
    {"filter": "a/+,b/#,$q/x"},
]
_TESTS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    EqualTo: lambda found, value: found == value,
    EqualNullSafe: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
    StringStartsWith: lambda found, value: found.startswith(value),
    StringEndsWith: lambda found, value: found.endswith(value),
    StringContains: lambda found, value: value in found,
}


def holds(condition: Filter, row: dict[str, Any]) -> bool:
    """As Spark evaluates it; null is no match."""
    if isinstance(condition, Not):
        is_null = row[condition.child.attribute[0]] is None and not isinstance(  # type: ignore[attr-defined]
            condition.child, EqualNullSafe | IsNull | IsNotNull
        )
        return not is_null and not holds(condition.child, row)
    if isinstance(condition, IsNull | IsNotNull):
        return (row[condition.attribute[0]] is None) == isinstance(condition, IsNull)
    (name,), value = condition.attribute, condition.value  # type: ignore[attr-defined]
    if value is None:
        return isinstance(condition, EqualNullSafe) and row[name] is None
    if isinstance(condition, In):
        value = [each for each in value if each is not None]
    if row[name] is None:
        return False
    return _TESTS[type(condition)](row[name], value)


class Site:
    """A node, a history of what it held at some time, and every row that there is, by option."""

    def __init__(self, endpoint: str, history: Path) -> None:
        self.endpoint = endpoint
        self.history = history
        self.rows = [self.read([], each) for each in OPTIONS]

    def read(self, filters: list[Filter], given: dict[str, str], *, history: bool = False) -> list[dict[str, Any]]:
        """The rows after the filters that Spark still has to evaluate."""
        also = {"history": str(self.history)} if history else {}
        options = SourceOptions.parse({"endpoint": self.endpoint, "recordsPerTask": "9", **given, **also})
        reader = BatchReader(options, SCHEMA)
        rest = list(reader.pushFilters(filters))
        assert all(each in filters for each in rest)
        parts = pickle.loads(pickle.dumps(reader)).partitions()
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        return [row for row in rows if all(holds(each, row) for each in rest)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Two rounds of messages with a pause between them, some of which were held and lie behind younger ones."""
    engine = await Engine.open(tmp_path / "data", StoreConfig(segment_size=4 << 20))
    server = RpcServer(engine, Authority(engine, 0), RpcLimits())
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with Client(address, name="tester") as client:
        for number in range(6):
            await client.send_many([OutgoingMessage(topic, b"%d" % number) for topic in TOPICS])
            for keys in (["k1"], ["k2", "k1"], ["k3"]):
                await client.send_many([OutgoingMessage(topic, b"keyed", keys=keys) for topic in TOPICS[2:4]])
            await client.send_many(
                [OutgoingMessage("a/x", b"ordered", ordering_key="o", content_type="text/plain", keys=["k1"])]
            )
            await client.send_many([OutgoingMessage(topic, b"held", deliver_after=0.02) for topic in TOPICS[2:5]])
            await asyncio.sleep(0.01)
            if number == 3:
                await asyncio.to_thread(export, address, tmp_path / "history")
        for _ in range(500):
            if not await client.timers():
                break
            await asyncio.sleep(0.01)
    yield await asyncio.to_thread(Site, address, tmp_path / "history")
    await server.stop(0.2)
    await engine.close()


def export(address: str, folder: Path) -> None:
    with BlockingClient(address) as client:
        for parent in ("a", "", "$q"):
            Exporter(client, DeltaFolder(str(folder)).table(parent)).run()


def filters_of(rows: list[dict[str, Any]]) -> st.SearchStrategy[Filter]:
    """About values that there are, those beside them, and those that are not."""
    times = sorted({row["stored_at"] for row in rows})
    edges = [datetime(1, 1, 2, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)]
    edges += [datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    moments = st.builds(
        lambda time, us: time + timedelta(microseconds=us),
        st.sampled_from(times) | st.sampled_from(edges),
        st.sampled_from([-1_000, -1, 0, 1, 999]),
    )
    texts = st.sampled_from([*TOPICS, "a/+", "#", "b", "z", "", "a/x/", "/", "$", "+", "a/\0", "a/" + "x" * 70_000])
    values = {
        "topic": texts,
        "partition": st.integers(-1, 9),
        "offset": st.integers(-2, 40) | st.just((1 << 63) - 1),
        "stored_at": moments,
        "qos": st.integers(0, 2),
        "client_id": st.sampled_from(["tester", ""]),
        "key": st.sampled_from(["k1", "k2", "k3", "none", "", "k" * 300]),
        "content_type": st.sampled_from(["text/plain", ""]),
        "payload": st.sampled_from([b"", b"keyed", b"held", b"1"]),
    }
    compared = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])

    def about(name: str) -> st.SearchStrategy[Filter]:
        ways: list[st.SearchStrategy[Filter]] = [
            st.builds(lambda kind, value: kind((name,), value), compared, values[name] | st.none()),
            st.lists(values[name] | st.none(), min_size=1, max_size=4).map(lambda some: In((name,), tuple(some))),
            st.sampled_from([IsNull((name,)), IsNotNull((name,))]),
        ]
        if name == "topic":
            kinds = st.sampled_from([StringStartsWith, StringEndsWith, StringContains])
            ways += [st.builds(lambda kind, value: kind((name,), value), kinds, texts)] * 2
        return st.one_of(ways)

    some = st.sampled_from([*values, "topic", "stored_at", "key"]).flatmap(about)
    return some | some.filter(lambda each: not isinstance(each, IsNull) and _is_known(each)).map(Not)


def _is_known(condition: Filter) -> bool:
    """Whether the filter compares with no null."""
    value = getattr(condition, "value", 0)
    return value is not None and not (isinstance(value, tuple) and None in value)


@pytest.mark.timeout(300)
async def test_filters_change_no_result(site: Site) -> None:
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(OPTIONS) - 1), st.lists(filters_of(site.rows[0]), min_size=1, max_size=4), st.booleans())
    def check(number: int, conditions: list[Filter], history: bool) -> None:
        def left(rows: list[dict[str, Any]]) -> list[int]:
            return sorted(row["position"] for row in rows if all(holds(each, row) for each in conditions))

        found = site.read(conditions, OPTIONS[number], history=history)
        assert sorted(row["position"] for row in found) == left(site.rows[number])

    assert len(site.rows[0]) == 6 * (len(TOPICS) + 3 + 6 + 1)
    await asyncio.to_thread(check)
