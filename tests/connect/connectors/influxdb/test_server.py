"""`influxdb-sink` at a server of InfluxDB 1.6."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from connect.connectors.influxdb.sink import InfluxDbSink
from tests.connect.connectors.harness import Context, reasons, sent, started
from tests.connect.connectors.servers import InfluxDb


@pytest.fixture
def influx(tmp_path: Path) -> Iterator[InfluxDb]:
    server = InfluxDb(tmp_path / "influxdb")
    try:
        server.start()
        yield server
    finally:
        server.kill()


async def test_points_are_read_as_they_were_written(influx: InfluxDb) -> None:
    given = {"influxdb.url": influx.url, "influxdb.db": "plant", "measurement.name.format": "${level3}"}
    given |= {"tags": "device=${level2},unit=${value.unit}", "fields": "t,count:integer,ok,note"}
    values = [
        {"t": 21, "count": 3, "ok": True, "unit": "°C, =x", "note": 'a "b" \\ c\nd'},
        {"t": 22.5, "unit": "K"},
        {"t": 1e300, "ok": False},
    ]
    names = ["a b", "c,d=e", "f\nè"]
    records = [sent(f"plant/{name}/m 1,x", value, n) for n, (name, value) in enumerate(zip(names, values, strict=True))]
    async with started(InfluxDbSink(), Context(), **given) as task:
        await task.put(records)
        await task.put(records)  # again: a point replaces itself
    (series,) = await asyncio.to_thread(influx.query, 'SELECT device, unit, t, count, ok, note FROM "m 1,x"')
    at = 1_780_000_000_000_000_000
    assert series["values"] == [
        [at, "a b", "°C, =x", 21, 3, True, 'a "b" \\ c\\nd'],
        [at + 1_000_001, "c,d=e", "K", 22.5, None, None, None],
        [at + 2_000_002, "f\\nè", None, 1e300, None, False, None],
    ]


async def test_a_field_with_another_type_is_rejected_alone(influx: InfluxDb) -> None:
    context = Context()
    async with started(InfluxDbSink(), context, influxdb_url=influx.url, influxdb_db="plant") as task:
        await task.put([sent("plant/a", {"t": 1}, 0)])
        await task.put([sent("plant/a", {"t": "warm" if n == 3 else n}, n) for n in range(1, 6)])
    assert [record.offset for record, _ in context.rejected] == [3]
    assert "field type conflict" in reasons(context)[0]
    (series,) = await asyncio.to_thread(influx.query, "SELECT t FROM plant")
    assert [value for _, value in series["values"]] == [1, 1, 2, 4, 5]
