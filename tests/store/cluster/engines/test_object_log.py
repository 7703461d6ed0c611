"""What only the log in an object store does: marks of removed slots, and answers of servers that are not as they
should be."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import LocalStore

from store.cluster.object_log import ObjectLog, open_object_log, slot_key, slot_of
from store.cluster.shared_log import SharedLogDamaged, SharedLogMisconfigured, SharedLogUnavailable, SlotRemoved
from tests.waiting import patience

_SECRET = "the-secret-key-of-this-test"
_SIGNED = "AKIA-the-access-key"


@given(st.lists(st.integers(1, 1 << 64 - 1), unique=True))
def test_keys_are_in_the_order_of_their_slots(slots: list[int]) -> None:
    keys = sorted(map(slot_key, slots))
    assert [slot_of(key) for key in keys] == sorted(slots)


class Folder:
    """A log in a folder, opened by nodes whose knowledge of the begin is as old as a test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, begin_fresh_s: float = 0, trim_delay_s: float = 0) -> ObjectLog:
        return ObjectLog(
            lambda: LocalStore(self.path, mkdir=True), 10, begin_fresh_s=begin_fresh_s, trim_delay_s=trim_delay_s
        )

    def slots(self) -> list[int]:
        return sorted(slot_of(f"slots/{file.name}") for file in (self.path / "slots").iterdir())


@pytest.fixture
async def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "log")
    log = made.open()
    for slot in range(1, 21):
        assert await log.create(slot, b"%d" % slot)
    return made


async def test_trimmed_slots_are_deleted_after_a_delay(folder: Folder) -> None:
    waiting = folder.open(trim_delay_s=1000)
    await waiting.trim(5)
    await waiting.trim(8)
    assert folder.slots() == list(range(1, 21))
    await folder.open().trim(8)
    assert folder.slots() == list(range(8, 21))
    await folder.open().trim(3)  # a node that is behind
    assert folder.slots() == list(range(8, 21))
    assert [file.name[-3:] for file in (folder.path / "begins").iterdir()] == ["008"]


async def test_a_call_deletes_a_bounded_number_of_slots(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.cluster.object_log._PAGE", 2)
    monkeypatch.setattr("store.cluster.object_log._MAX_PAGES", 2)
    log = folder.open()
    left = []
    for _ in range(4):
        await log.trim(10)
        left.append(len(folder.slots()))
    assert left == [16, 12, 11, 11]


async def test_a_node_that_slept_takes_no_deleted_slot_for_one_that_is_not_decided(folder: Folder) -> None:
    slept = folder.open()
    assert await slept.read(4) == b"4"
    await folder.open().trim(9)
    with pytest.raises(SlotRemoved):
        await slept.read(5)
    slept = folder.open()
    slept._decided = 4
    with pytest.raises(SlotRemoved):
        await slept.create(5, b"a history of its own")
    assert 5 in folder.slots()
    with pytest.raises(SlotRemoved):  # the same, to another one that slept
        await folder.open().read(5)


async def test_what_is_known_of_the_begin_is_not_asked_for_each_slot(folder: Folder) -> None:
    log = folder.open(begin_fresh_s=60, trim_delay_s=60)
    assert await log.read(1) == b"1"
    await folder.open(trim_delay_s=60).trim(9)
    assert await log.read(2) == b"2"  # not deleted yet
    log._begin_at -= 61
    with pytest.raises(SlotRemoved):
        await log.read(3)


async def test_the_end_does_not_rest_on_what_was_seen_before(folder: Folder) -> None:
    log = folder.open()
    assert await log.end() == 21
    for slot in range(12, 21):
        (folder.path / slot_key(slot)).unlink()
    assert await log.end() == 12
    with pytest.raises(SharedLogDamaged):
        await folder.open().create(21, b"21")


async def test_options_that_are_unknown_are_named(tmp_path: Path) -> None:
    for url, options in (
        (f"file://{tmp_path}", {"region": "x"}),
        ("s3://bucket/log", {"regoin": "eu-central-1", "region": "eu-central-1"}),
        ("s3://bucket/log", {"request_timeout_s": 0}),
        ("s3://bucket/log", {"request_timeout_s": "10s"}),
        ("az://container/log", {}),
    ):
        with pytest.raises(SharedLogMisconfigured, match=r"region|regoin|request_timeout_s|Account"):
            await open_object_log(url, options)


def _options(port: int) -> dict[str, str | bool | float]:
    """Of a log at a server on this port."""
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": True,
        "region": "us-east-1",
        "access_key_id": _SIGNED,
        "secret_access_key": _SECRET,
        "request_timeout_s": 2,
    }


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[dict[str, str | bool | float]]]]:
    """Starts a server that answers each request by one handler; returns the options of a log there."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> dict[str, str | bool | float]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        return _options(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_store_that_ignores_conditions_is_refused(serve) -> None:
    async def overwrite(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(headers={"ETag": '"1"'})

    options = await serve(overwrite)
    with pytest.raises(SharedLogMisconfigured, match="If-None-Match"):
        await open_object_log("s3://bucket/log", options)


async def test_a_conflict_that_decided_nothing_is_no_decided_slot(serve) -> None:
    """S3 answers 409 to a write beside another one, also if neither is stored."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if "list-type" in request.query:
            return web.Response(text="<ListBucketResult></ListBucketResult>")
        if request.method == "PUT":
            return web.Response(status=412 if "conditional" in request.path else 409)
        return web.Response(status=404)

    log = await open_object_log("s3://bucket/log", await serve(answer))
    with pytest.raises(SharedLogUnavailable, match="another write of slot 1"):
        await log.create(1, b"1")


async def test_a_server_that_does_not_answer_is_unavailable() -> None:
    ended = asyncio.Event()  # with the call, or requests would add up

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    options = _options(server.sockets[0].getsockname()[1])
    with pytest.raises(SharedLogUnavailable, match=r"no answer within 0\.3 s"):
        await open_object_log("s3://bucket/log", {**options, "request_timeout_s": 0.3})
    async with patience():
        await ended.wait()
    server.close()


_SKEWED = "RequestTimeTooSkewed: The difference between the request time and the current time is too large."


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "told"),
    [
        (404, "NoSuchBucket", "", SharedLogMisconfigured, "the bucket of the shared log does not exist"),
        (501, "NotImplemented", "", SharedLogMisconfigured, "no conditional writes"),
        (503, "SlowDown", "Please reduce your request rate.", SharedLogUnavailable, "SlowDown: Please reduce"),
        (403, *_SKEWED.split(": "), SharedLogUnavailable, _SKEWED),
        (403, "InvalidAccessKeyId", "", SharedLogUnavailable, "InvalidAccessKeyId"),
    ],
)
async def test_what_the_store_says_is_told(
    serve, status: int, code: str, message: str, kind: type[Exception], told: str
) -> None:
    async def refuse(request: web.Request) -> web.Response:
        await request.read()
        error = f"<Code>{code}</Code><Message>{message}</Message>"
        return web.Response(status=status, text=f'<?xml version="1.0" encoding="UTF-8"?><Error>{error}</Error>')

    with pytest.raises(kind, match=re.escape(told)):
        await open_object_log("s3://bucket/log", await serve(refuse))


async def test_an_endpoint_without_tls_has_to_be_allowed() -> None:
    options = _options(1)
    del options["allow_http"]
    with pytest.raises(SharedLogMisconfigured, match="allow_http"):
        await open_object_log("s3://bucket/log", options)


async def test_credentials_in_the_address_are_refused() -> None:
    with pytest.raises(SharedLogMisconfigured, match="credentials are options") as caught:
        await open_object_log(f"s3://{_SIGNED}:{_SECRET}@bucket/log", _options(1))
    assert _SECRET not in str(caught.value)


class Bucket:
    """An S3 server that has the first `count` slots of a log, and counts requests."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.busy = 0  # answers that are 503 from now on
        self.is_gone = False
        self.requests: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        await request.read()
        if self.busy:
            self.busy -= 1
            return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
        if self.is_gone:
            return web.Response(status=404, text="<Error><Code>NoSuchBucket</Code></Error>")
        if "list-type" in request.query:
            return web.Response(text="<ListBucketResult></ListBucketResult>")
        is_there = "conditional" in request.path or slot_of(request.path) <= self.count
        if request.method == "PUT":
            return web.Response(status=412 if is_there else 200, headers={} if is_there else {"ETag": '"1"'})
        headers = {"Last-Modified": "Wed, 21 Oct 2026 07:28:00 GMT", "ETag": '"1"'}
        return web.Response(status=200 if is_there else 404, headers=headers, body=b"slot")


async def test_the_end_of_many_slots_takes_few_requests(serve) -> None:
    bucket = Bucket(100_000)
    log = await open_object_log("s3://bucket/log", await serve(bucket.answer))
    for most in (36, 3):
        bucket.requests.clear()
        assert await log.end() == 100_001
        assert len(bucket.requests) <= most


async def test_a_store_that_is_busy_is_asked_again(serve) -> None:
    bucket = Bucket(0)
    log = await open_object_log("s3://bucket/log", await serve(bucket.answer))
    bucket.busy = 2
    assert await log.create(1, b"1")
    bucket.busy = 1000
    with pytest.raises(SharedLogUnavailable, match="SlowDown"):
        await log.create(2, b"2")
    assert bucket.busy > 900


async def test_a_bucket_that_is_gone_has_no_open_slots(serve) -> None:
    bucket = Bucket(3)
    log = await open_object_log("s3://bucket/log", await serve(bucket.answer))
    assert await log.read(3) == b"slot"
    assert await log.read(4) is None
    bucket.is_gone = True
    for call in (log.read(4), log.create(4, b"4")):
        with pytest.raises(SharedLogUnavailable, match="NoSuchBucket"):
            await call


async def test_credentials_are_taken_from_the_environment(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(0)
    options = await serve(bucket.answer)
    for name in ("access_key_id", "secret_access_key"):
        monkeypatch.setenv(f"AWS_{name}".upper(), str(options.pop(name)))
    await open_object_log("s3://bucket/log", options)
    assert f"Credential={_SIGNED}/" in bucket.requests[0].headers["Authorization"]


async def test_a_machine_without_credentials_says_so(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=403)

    options = await serve(refuse)
    for name in ("access_key_id", "secret_access_key"):
        monkeypatch.delenv(f"AWS_{name}".upper(), raising=False)
        del options[name]
    with pytest.raises(SharedLogUnavailable, match="no credentials are given"):
        await open_object_log("s3://bucket/log", {**options, "metadata_endpoint": str(options["endpoint"])})


async def test_an_object_that_is_no_slot_is_not_read(folder: Folder) -> None:
    log = folder.open()
    with (folder.path / slot_key(21)).open("wb") as file:
        file.truncate(log.max_slot_bytes + 1)
    with pytest.raises(SharedLogDamaged, match="slot 21 has"):
        await log.read(21)


@pytest.mark.parametrize("status", [400, 403, 500])
async def test_errors_do_not_have_credentials(serve, status: int) -> None:
    seen: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        error = f"<AWSAccessKeyId>{_SIGNED}</AWSAccessKeyId><StringToSign>{seen[0]}</StringToSign><Message>no</Message>"
        return web.Response(status=status, text=f"<Error>{error}</Error>")

    with pytest.raises(SharedLogUnavailable) as caught:
        await open_object_log("s3://bucket/log", await serve(refuse))
    assert seen
    text = f"{caught.value} {caught.value.__cause__}"
    assert str(status) in text or "Error" in text
    assert _SIGNED not in text
    assert _SECRET not in text
