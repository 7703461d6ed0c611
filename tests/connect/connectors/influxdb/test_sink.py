"""`influxdb-sink`: the requests that InfluxDB's documentation asks for."""

import pytest
from aiohttp import web

from connect.api import ConnectError, DataError, InvalidSettings
from connect.connectors.influxdb.line_protocol import field_value, flat, line
from connect.connectors.influxdb.sink import InfluxDbSink
from tests.connect.connectors.harness import Context, reasons, sent, settings_of, started
from tests.connect.connectors.http_server import Got, Server

AT = 1_780_000_000_000_000_000


async def test_points_of_influxdb_2(server: Server) -> None:
    given = {"influxdb.url": server.url, "influxdb.bucket": "plant", "influxdb.org.id": "o", "influxdb.token": "T"}
    given |= {"tags": "device=${level2},unit=${value.unit},line=${header.line}", "measurement.name.format": "${level3}"}
    async with started(InfluxDbSink(), Context(), **given) as task:
        await task.put(
            [
                sent("fleet/a b/temp", {"t": 21, "ok": True, "unit": "C", "deep": {"x": [1.5, 2]}}),
                sent("fleet/c/temp", b'{"t": 22.5, "note": "say \\"hi\\""}', 7, headers=[("line", "3")]),
            ]
        )
    (got,) = server.got
    assert (got.method, got.path) == ("POST", "/api/v2/write")
    assert got.query == {"bucket": "plant", "org": "o", "precision": "ns"}
    assert got.headers["authorization"] == "Token T"
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    assert got.headers["content-encoding"] == "gzip"
    assert got.body.decode().splitlines() == [
        f'temp,device=a\\ b,unit=C t=21.0,ok=true,unit="C",deep_x_0=1.5,deep_x_1=2.0 {AT}',
        f'temp,device=c,line=3 t=22.5,note="say \\"hi\\"" {AT + 7_000_007}',
    ]


async def test_points_of_influxdb_1(server: Server) -> None:
    given = {"influxdb.url": server.url + "/proxy", "influxdb.db": "plant", "influxdb.retention.policy": "week"}
    given |= {"influxdb.username": "u", "influxdb.password": "p", "influxdb.gzip.enable": "false"}
    given |= {"fields": "t,count:integer", "event.time.fieldname": "at", "influxdb.timeunit": "SECONDS"}
    async with started(InfluxDbSink(), Context(), **given) as task:
        await task.put([sent("fleet/a", {"t": 1, "count": 3, "more": 9, "at": 1_780_000_000})])
        await task.put([sent("fleet/a", {"t": 1, "at": "2026-05-28T20:26:40Z"})])
    first, second = server.got
    assert (first.path, first.query) == ("/proxy/write", {"db": "plant", "rp": "week", "precision": "ns"})
    assert first.headers["authorization"] == "Basic dTpw"
    assert first.body == b"fleet t=1.0,count=3i %d\n" % AT
    assert second.body == b"fleet t=1.0 %d\n" % AT


async def test_a_point_that_influxdb_refuses_is_rejected_alone(server: Server) -> None:
    def answer(got: Got) -> web.Response:
        text = '{"code":"invalid","message":"field type conflict"}'
        return web.Response(status=400, text=text) if b"t=5.0" in got.body else web.Response(status=204)

    server.answer = answer
    context = Context()
    async with started(InfluxDbSink(), context, influxdb_url=server.url, influxdb_bucket="b") as task:
        await task.put([sent("fleet/a", {"t": n}, n) for n in range(8)])
        await task.put([sent("fleet/a", {"nothing": None}), sent("fleet/a", b"\xff", 1)])
    assert [record.offset for record, _ in context.rejected] == [5, 0, 1]
    assert "field type conflict" in reasons(context)[0]
    accepted = b"".join(got.body for got in server.got if b"t=5.0" not in got.body)
    assert accepted.count(b"\n") == 7


async def test_a_wrong_token_ends_the_task(server: Server) -> None:
    server.answer = lambda got: web.Response(status=401, text="unauthorized access")
    async with started(InfluxDbSink(), Context(), influxdb_url=server.url, influxdb_bucket="b") as task:
        with pytest.raises(ConnectError, match="status 401: unauthorized access"):
            await task.put([sent("fleet/a", 1)])


async def test_batches_have_a_size(server: Server) -> None:
    given = {"influxdb.url": server.url, "influxdb.bucket": "b", "batch.size": "3"}
    async with started(InfluxDbSink(), Context(), **given) as task:
        await task.put([sent("fleet/a", n, n) for n in range(8)])
    assert sorted(got.body.count(b"\n") for got in server.got) == [2, 3, 3]


def test_special_characters_are_escaped() -> None:
    fields = {"f, =x": field_value('a "b" \\ c\nd', None)}
    made = line("m, =x", {"k, =": "v, =\n", "none": ""}, fields, 5)
    assert made == r'm\,\ =x,k\,\ \==v\,\ \=\n f\,\ \=x="a \"b\" \\ c\\nd" 5'


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1, None, "1.0"),
        (1e300, None, "1e+300"),
        (True, None, "true"),
        ("on", None, '"on"'),
        (3, "integer", "3i"),
        ("12", "integer", "12i"),
        ("12.5", "float", "12.5"),
        ("false", "boolean", "false"),
        (1, "string", '"1"'),
    ],
)
def test_types_of_fields(value: object, kind: str | None, text: str) -> None:
    assert field_value(value, kind) == text


@pytest.mark.parametrize(
    ("value", "kind"),
    [(float("nan"), None), (1 << 63, "integer"), ("x", "float"), ("yes", "boolean"), ([1], "float"), ({}, "boolean")],
)
def test_what_a_field_cannot_have(value: object, kind: str | None) -> None:
    with pytest.raises(DataError):
        field_value(value, kind)


def test_a_value_may_be_deep_but_not_too_deep() -> None:
    deep: object = 1
    for _ in range(40):
        deep = {"a": deep}
    with pytest.raises(DataError, match="more than 32 levels"):
        flat(deep)
    with pytest.raises(DataError, match="repeated in more than 262144 characters"):
        flat({"k" * 10_000: {str(number): 1 for number in range(100)}})
    with pytest.raises(DataError, match="ends with a backslash"):
        line("m", {"a": "b\\"}, {"f": "1"}, 0)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings_of(InfluxDbSink(), {"influxdb.url": "http://h", "tags": "device", "fields": "n:long"})
    assert set(raised.value.errors) == {"influxdb.bucket", "tags", "fields"}
