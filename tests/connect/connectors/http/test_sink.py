"""`http-sink`: what an endpoint gets, and what becomes of its answers."""

import asyncio
import hmac
import json
import ssl
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from aiohttp import web

from connect.api import ConnectError, InvalidSettings, RetriableError
from connect.connectors.http.sink import HttpSink
from connect.net.http_client import HttpClient
from tests.connect.connectors.harness import Context, reasons, sent, settings_of, started
from tests.connect.connectors.http_server import Got, Server, http_server
from tests.gateway.authority import Authority
from tests.waiting import until

SECRET = b"0123456789abcdef01234567"


async def test_a_message_is_a_request(server: Server) -> None:
    url = server.url + "/in/${level2}?key=${key}"
    async with started(HttpSink(), Context(), http_api_url=url, headers="X-A: 1|X-B: b:c") as task:
        await task.put([sent("fleet/a b/t", b"{}", content_type="application/json", key="k/1")])
    (got,) = server.got
    assert (got.method, got.path, got.query, got.body) == ("POST", "/in/a%20b", {"key": "k/1"}, b"{}")
    assert (got.headers["x-a"], got.headers["x-b"], got.headers["content-type"]) == ("1", "b:c", "application/json")


async def test_batches_are_signed_as_standard_webhooks_say(server: Server) -> None:
    given = {"http.api.url": server.url, "batch.max.size": "2", "request.body.format": "record"}
    given["webhook.secret"] = "whsec_" + b64encode(SECRET).decode()
    records = [sent("fleet/a", {"t": n}, n, headers=[("unit", "C")]) for n in range(3)]
    for _ in range(2):
        async with started(HttpSink(), Context(), **given) as task:
            await task.put(records)
    assert sorted(len(json.loads(each.body)) for each in server.got) == [1, 1, 2, 2]
    first = next(each for each in server.got if len(json.loads(each.body)) == 2)
    assert json.loads(first.body)[1] == {
        "topic": "fleet/a",
        "levels": ["fleet", "a"],
        "key": None,
        "value": {"t": 1},
        "value_base64": None,
        "headers": [["unit", "C"]],
        "stored_at": "2026-05-28T20:26:40.001Z",
        "partition": 0,
        "offset": 1,
        "position": 1000,
    }
    for each in server.got:
        identity, at = each.headers["webhook-id"], each.headers["webhook-timestamp"]
        expected = hmac.digest(SECRET, f"{identity}.{at}.".encode() + each.body, "sha256")
        version, _, given_signature = each.headers["webhook-signature"].partition(",")
        assert (version, b64decode(given_signature)) == ("v1", expected)
    assert len({each.headers["webhook-id"] for each in server.got}) == 2  # repeated requests keep theirs


async def test_many_requests_are_on_their_way_at_once(server: Server) -> None:
    server.gate = asyncio.Event()
    async with started(HttpSink(), Context(), http_api_url=server.url, max_in_flight_requests="7") as task:
        put = asyncio.create_task(task.put([sent("a/b", b"x", n) for n in range(50)]))
        await until(lambda: len(server.got) == 7)
        server.gate.set()
        await put
    assert (len(server.got), server.most_at_once) == (50, 7)


async def test_what_was_sent_is_not_sent_again_after_a_failure(server: Server) -> None:
    down = True

    def answer(got: Got) -> web.Response:
        return web.Response(status=503 if got.body == b"2" and down else 200, headers={"Retry-After": "120"})

    server.answer = answer
    records = [sent("a/b", b"%d" % n, n) for n in range(5)]
    given = {"http.api.url": server.url, "max.in.flight.requests": "1"}
    async with started(HttpSink(), Context(), **given) as task:
        with pytest.raises(RetriableError, match="status 503") as raised:
            await task.put(records)
        assert raised.value.retry_after_s == 120
        down = False
        await task.put(records)
    assert [each.body for each in server.got] == [b"0", b"1", b"2", b"2", b"3", b"4"]


async def test_a_short_failure_is_tried_again_by_the_task(server: Server) -> None:
    server.answer = lambda got: web.Response(status=500 if len(server.got) < 3 else 200)
    async with started(HttpSink(), Context(), http_api_url=server.url, retry_backoff_ms="1") as task:
        await task.put([sent("a/b", b"x")])
    assert len(server.got) == 3


async def test_a_message_does_not_lead_to_another_path(server: Server) -> None:
    context = Context()
    async with started(HttpSink(), context, http_api_url=server.url + "/in/${level2}?of=${level2}") as task:
        await task.put([sent("a/..", b"x"), sent("a/.", b"x", 1), sent("a/...", b"x", 2)])
    assert ([got.path for got in server.got], len(reasons(context))) == (["/in/..."], 2)


async def test_of_a_large_answer_the_first_bytes_are_read(server: Server) -> None:
    server.answer = lambda got: web.Response(status=422, text="no " * (1 << 20))
    client = HttpClient(Context(), connect_timeout_s=9, timeout_s=9, max_connections=1, max_answer=1000)
    answer = await client.send(server.url, b"x", {})
    await client.close()
    assert (answer.status, len(answer.body)) == (422, 1000)


async def test_a_message_that_is_refused_is_rejected_alone(server: Server) -> None:
    server.answer = lambda got: web.Response(status=422 if got.body == b"bad" else 200, text="no\nthanks")
    context = Context()
    async with started(HttpSink(), context, http_api_url=server.url + "/${level3}") as task:
        await task.put([sent("a/b/c", b"good"), sent("a/b/c", b"bad", 1), sent("a/b", b"short", 2)])
    assert sorted(reasons(context)) == ["status 422: no thanks", "the topic has fewer than 3 levels"]
    assert len(server.got) == 2


async def test_a_batch_that_is_refused_is_sent_in_halves(server: Server) -> None:
    server.answer = lambda got: web.Response(status=400 if b"bad" in got.body else 200)
    context = Context()
    given = {"http.api.url": server.url, "batch.max.size": "8", "batch.format": "lines"}
    async with started(HttpSink(), context, **given) as task:
        await task.put([sent("a/b", b"bad\nline" if n == 5 else b"%d" % n, n) for n in range(8)])
    assert [record.offset for record, _ in context.rejected] == [5]
    accepted = [line for got in server.got if b"bad" not in got.body for line in got.body.splitlines()]
    assert sorted(accepted) == [b"0", b"1", b"2", b"3", b"4", b"6", b"7"]
    assert server.got[0].headers["content-type"] == "application/x-ndjson"


async def test_a_wrong_password_ends_the_task(server: Server) -> None:
    server.answer = lambda got: web.Response(status=401)
    context = Context()
    given = {"http.api.url": server.url, "connection.user": "u", "connection.password": "secret"}
    async with started(HttpSink(), context, **given) as task:
        with pytest.raises(ConnectError, match="status 401"):
            await task.put([sent("a/b", b"x")])
    assert server.got[0].headers["authorization"] == "Basic dTpzZWNyZXQ="
    assert context.rejected == []


async def test_redirections_are_not_followed(server: Server) -> None:
    server.answer = lambda got: web.Response(status=302, headers={"Location": server.url + "/secret"})
    context = Context()
    async with started(HttpSink(), context, http_api_url=server.url) as task:
        await task.put([sent("a/b", b"x")])
    assert (len(server.got), reasons(context)) == (1, ["status 302"])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433"])
async def test_private_addresses_are_refused_when_it_connects(server: Server, host: str) -> None:
    context = Context(is_private_allowed=False)
    url = f"http://{host}:{server.port}"
    async with started(HttpSink(), context, http_api_url=url, max_retries="0") as task:
        with pytest.raises(ConnectError, match=r"private address|cannot be made") as raised:
            await task.put([sent("a/b", b"x")])
    assert not isinstance(raised.value, RetriableError)
    assert server.got == []


async def test_an_endpoint_that_is_away_is_tried_later_without_its_secrets_in_the_error(server: Server) -> None:
    url = "http://127.0.0.1:1/hook?token=hidden"
    async with started(HttpSink(), Context(), http_api_url=url, retry_backoff_ms="1") as task:
        with pytest.raises(RetriableError) as raised:
            await task.put([sent("a/b", b"x")])
    assert "hidden" not in str(raised.value)
    assert "127.0.0.1:1" in str(raised.value)


async def test_a_slow_endpoint_is_tried_later(server: Server) -> None:
    server.gate = asyncio.Event()
    given = {"http.api.url": server.url, "http.request.timeout.ms": "50", "max.retries": "0"}
    async with started(HttpSink(), Context(), **given) as task:
        with pytest.raises(RetriableError, match=r"has not answered within 0\.05 s"):
            await task.put([sent("a/b", b"x")])
    server.gate.set()


async def test_requests_are_spaced_evenly(server: Server) -> None:
    async with started(HttpSink(), Context(), http_api_url=server.url, rate_limit="100") as task:
        begin = asyncio.get_running_loop().time()
        await task.put([sent("a/b", b"x", n) for n in range(11)])
        assert asyncio.get_running_loop().time() - begin >= 0.1
    assert len(server.got) == 11


async def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "server", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.issue("client", "client")
    both = tmp_path / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    async with http_server(tls) as server:
        given = {"http.api.url": server.url, "ssl.truststore.location": str(authority.file)}
        async with started(HttpSink(), Context(), **given, **{"ssl.keystore.location": str(both)}) as task:
            await task.put([sent("a/b", b"x")])
        assert len(server.got) == 1
        async with started(HttpSink(), Context(), http_api_url=server.url) as task:
            with pytest.raises(ConnectError, match=r"certificate of 127\.0\.0\.1:.* is not valid") as raised:
                await task.put([sent("a/b", b"x")])
        assert not isinstance(raised.value, RetriableError)
    missing = {"http.api.url": "https://host", "ssl.truststore.location": str(tmp_path / "missing.pem")}
    with pytest.raises(ConnectError, match="the certificates cannot be used"):
        await HttpSink().task().start(settings_of(HttpSink(), missing), Context())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "http.api.url: a value is required"),
        ({"http.api.url": "ftp://host"}, "a URL that begins with http:// or https:// is expected"),
        ({"http.api.url": "https://u:p@host"}, "a URL has no credentials"),
        ({"http.api.url": "https://${level1}/"}, "the host of a URL has no placeholders"),
        ({"http.api.url": "https://host/${client}"}, "there is no placeholder ${client}"),
        ({"http.api.url": "https://host", "headers": "Host: other"}, "the header Host cannot be set"),
        ({"http.api.url": "https://host", "headers": "none"}, "headers are texts of ASCII such as `Name: value`"),
        ({"http.api.url": "https://host", "webhook.secret": "whsec_AAAA"}, "a secret has at least 24 bytes"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings_of(HttpSink(), given)
    assert problem in str(raised.value)
