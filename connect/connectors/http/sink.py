"""`http-sink`: messages to an HTTP endpoint, such as a webhook. Its settings are those of Confluent's HTTP sink."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from time import time
from typing import Final
from urllib.parse import quote, urlsplit

from connect.api import (
    ConnectError,
    DataError,
    Importance,
    Setting,
    Settings,
    SettingType,
    SinkConnector,
    SinkContext,
    SinkRecord,
    SinkTask,
)
from connect.connectors.common.batches import RateLimit, Refused, at_most, by_size, in_halves, tried_again, writable
from connect.connectors.common.http_settings import basic_auth, http_client, retries, timeouts, url_problem
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.tls import TLS
from connect.connectors.common.values import parsed, raw, row, to_json
from connect.net.http_client import Answer, HttpClient
from connect.net.webhook_signature import identity_of, secret_bytes, secret_problem, signature_headers

_CONNECT_MS: Final = "http.connect.timeout.ms"
_REQUEST_MS: Final = "http.request.timeout.ms"
_RESERVED: Final = ("content-length", "host", "transfer-encoding", "connection", "webhook-")
_UNAUTHORIZED: Final = (401, 403, 407)
_OF_CONTENT: Final = (400, 413, 422)  # perhaps because of one message of several
_UPWARDS: Final = re.compile(r"/\.\.?(/|$)")
_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"

Request = tuple[str, Sequence[tuple[SinkRecord, bytes]]]  # the URL; messages, each with its part of the body


def _headers_of(settings: Settings) -> dict[str, str]:
    """The headers of `headers`. Raises ValueError."""
    found = {}
    for each in (settings["headers"] or "").split(settings["header.separator"]):
        if not each.strip():
            continue
        name, colon, value = (part.strip() for part in each.partition(":"))
        if not colon or not name or not each.isprintable() or not each.isascii():
            raise ValueError("headers are texts of ASCII such as `Name: value`")
        if name.lower().startswith(_RESERVED):
            raise ValueError(f"the header {name} cannot be set")
        found[name] = value
    return found


def _endpoint_problem(url: str) -> str | None:
    problem = url_problem(url) or problem_of(url)
    if problem is None and "$" in urlsplit(url).netloc:
        return "the host of a URL has no placeholders"
    return problem


class HttpSink(SinkConnector):
    """Sends each message, or batches of them, at least once."""

    name = "http-sink"
    description = "sends messages to an HTTP endpoint, such as a webhook"
    value_converter = "raw"
    settings = (
        Setting(
            "http.api.url",
            f"Where requests go. Its path and its query may have {KINDS}.",
            required=True,
            importance=Importance.HIGH,
            check=_endpoint_problem,
        ),
        Setting("request.method", "Method of requests.", default="POST", choices=("POST", "PUT", "PATCH")),
        Setting(
            "request.body.format",
            "value: the value, as the converter made it. record: JSON with topic, key, value, headers and the place in "
            "the log.",
            default="value",
            choices=("value", "record"),
        ),
        Setting(
            "headers",
            "Headers of requests, as `Name: value`, with `header.separator` between them.",
            SettingType.PASSWORD,
        ),
        Setting("header.separator", "What is between two headers.", default="|", importance=Importance.LOW),
        Setting("connection.user", "User of HTTP's basic authentication."),
        Setting("connection.password", "Password of that user.", SettingType.PASSWORD),
        Setting(
            "webhook.secret",
            "Signs requests as Standard Webhooks say: `whsec_` and Base64 of 24 bytes or more.",
            SettingType.PASSWORD,
            check=secret_problem,
        ),
        Setting("batch.max.size", "Messages of a request.", SettingType.INT, 1, least=1, most=10_000),
        Setting("batch.max.bytes", "Bytes of a request.", SettingType.INT, 1 << 20, least=1, most=64 << 20),
        Setting(
            "batch.format",
            "What a request with several messages is: a JSON array, or a line for each.",
            default="array",
            choices=("array", "lines"),
        ),
        Setting(
            "max.in.flight.requests",
            "Requests at a time. With 1 they go in the order of the messages.",
            SettingType.INT,
            256,
            least=1,
            most=1024,
        ),
        Setting("rate.limit", "Requests a second; 0: no limit.", SettingType.DOUBLE, 0.0, least=0),
        *retries(3),
        *timeouts(_CONNECT_MS, _REQUEST_MS),
        *TLS,
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        try:
            _headers_of(settings)
        except ValueError as error:
            return {"headers": str(error)}
        return {}

    def task(self) -> SinkTask:
        return HttpSinkTask()


class HttpSinkTask(SinkTask):
    """Sends each message, or batches of them, with several requests at a time."""

    _client: HttpClient | None = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._url = Name(settings["http.api.url"])
        self._headers = basic_auth(settings["connection.user"], settings["connection.password"])
        self._headers |= _headers_of(settings)
        secret = settings["webhook.secret"]
        self._secret = secret_bytes(secret) if secret else b""
        self._rate = RateLimit(settings["rate.limit"])
        self._most = settings["batch.max.size"]
        self._is_array = settings["batch.format"] == "array"
        # When a `put` fails, all its records come again: what was sent is not sent again.
        self._sent: set[int] = set()
        self._client = http_client(context, settings, _CONNECT_MS, _REQUEST_MS, settings["max.in.flight.requests"])

    async def put(self, records: Sequence[SinkRecord]) -> None:
        sent, self._sent = self._sent, set()
        left = [record for record in records if record.position not in sent]
        try:
            await at_most(self._settings["max.in.flight.requests"], self._requests(left), self._deliver)
        except ConnectError:
            self._sent |= sent.intersection(record.position for record in records)
            raise
        self._sent.clear()

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()

    def _requests(self, records: Sequence[SinkRecord]) -> list[Request]:
        """The requests for records, in their order. A request has records of one URL."""
        by_url: dict[str, list[tuple[SinkRecord, bytes]]] = {}
        for record, (url, part) in writable(records, self._made, self._context):
            by_url.setdefault(url, []).append((record, part))
        most_bytes = self._settings["batch.max.bytes"]
        return [(url, batch) for url, items in by_url.items() for batch in by_size(items, self._most, most_bytes)]

    def _made(self, record: SinkRecord) -> tuple[str, bytes]:
        if self._settings["request.body.format"] == "record":
            part = to_json(row(record))
        elif self._most > 1:
            part = to_json(parsed(record.value))  # so a text of several lines is one, and an array is valid
        else:
            part = raw(record.value)
        url = self._url.of(record, partial(quote, safe=""))
        if _UPWARDS.search(url.partition("?")[0]):
            raise DataError("a part of the path of the URL would be . or .., which leads to another path")
        return url, part

    async def _deliver(self, request: Request) -> None:
        url, items = request
        await in_halves(items, partial(self._deliver_batch, url), self._context)

    async def _deliver_batch(self, url: str, items: Sequence[tuple[SinkRecord, bytes]]) -> None:
        answer = await tried_again(
            partial(self._send, url, items), self._settings["max.retries"], self._settings["retry.backoff.ms"]
        )
        if answer.is_success:
            self._sent.update(record.position for record, _ in items)
        elif answer.status in _UNAUTHORIZED:
            raise answer.error()
        elif answer.status in _OF_CONTENT:
            raise Refused(str(answer.error()))
        else:
            for record, _ in items:
                self._context.reject(record, answer.error())

    async def _send(self, url: str, items: Sequence[tuple[SinkRecord, bytes]]) -> Answer:
        await self._rate.wait()
        headers = self._headers | {"Content-Type": self._content_type(items[0][0])}
        body = items[0][1]
        if self._most > 1:
            parts = [part for _, part in items]
            body = b"[%s]" % b",".join(parts) if self._is_array else b"".join(part + b"\n" for part in parts)
        if self._secret:
            identity = identity_of(self._context.connector, [record.position for record, _ in items])
            headers |= signature_headers(identity, int(time()), body, self._secret)
        assert self._client is not None
        return await self._client.send(url, body, headers, self._settings["request.method"])

    def _content_type(self, record: SinkRecord) -> str:
        if self._most > 1 or self._settings["request.body.format"] == "record":
            return _JSON if self._most == 1 or self._is_array else _LINES
        given = record.content_type
        if given and given.isascii() and given.isprintable():
            return given
        if isinstance(record.value, bytes):
            return "application/octet-stream"
        return "text/plain; charset=utf-8" if isinstance(record.value, str) else _JSON
