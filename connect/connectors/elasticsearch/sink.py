"""`elasticsearch-sink`: documents in an index of Elasticsearch or OpenSearch. Its settings are those of Confluent's
Elasticsearch sink."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from connect.api import (
    ConnectError,
    DataError,
    Importance,
    RetriableError,
    Setting,
    Settings,
    SettingType,
    SinkConnector,
    SinkContext,
    SinkRecord,
    SinkTask,
)
from connect.connectors.common.batches import Refused, at_most, by_size, in_halves, tried_again, writable
from connect.connectors.common.http_settings import basic_auth, http_client, retries, timeouts, url_problem
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.tls import TLS
from connect.connectors.common.values import iso, json_object, row, to_json
from connect.net.http_client import HttpClient

_CONNECT_MS: Final = "connection.timeout.ms"
_REQUEST_MS: Final = "read.timeout.ms"


# Of the answer we need only what became of each document.
_BULK: Final = "/_bulk?filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason"
_FORBIDDEN: Final = re.compile(r'[\\/*?"<>| ,#:\x00-\x1f]')  # in the name of an index
_EXISTS: Final = 409
_TOO_LARGE: Final = 413
_MAX_INDEX: Final = 255  # bytes
_MAX_ID: Final = 512  # bytes
_MAX_REASON: Final = 200  # characters
_MAX_ANSWER: Final = 16 << 20  # bytes: it has an outcome for each document

Item = tuple[SinkRecord, bytes]  # a message with the two lines of its document


class ElasticsearchSink(SinkConnector):
    """Writes a document for each message. Its id is that of the message, so a repeated one is the same document."""

    name = "elasticsearch-sink"
    description = "writes documents to an index of Elasticsearch or OpenSearch"
    settings = (
        Setting(
            "connection.url",
            "Where Elasticsearch is: one or more URLs. If one does not answer, the next one is asked.",
            SettingType.LIST,
            required=True,
            importance=Importance.HIGH,
            check=lambda urls: next(filter(None, map(url_problem, urls)), None),
        ),
        Setting("connection.username", "User."),
        Setting("connection.password", "Password of that user.", SettingType.PASSWORD),
        Setting("connection.api.key", "API key (its encoded form), in place of a user.", SettingType.PASSWORD),
        Setting(
            "index",
            f"Index of a message. It may have {KINDS}, in lower case, with - for characters that an index cannot have.",
            default="${level1}",
            importance=Importance.HIGH,
            check=problem_of,
        ),
        Setting(
            "key.ignore",
            "true: a document has the id of its message. false: the key of the message, so a later message with the "
            "same key replaces it.",
            SettingType.BOOLEAN,
            True,
        ),
        Setting(
            "write.method",
            "index: a document replaces one with the same id. create: it does not; data streams need this.",
            default="index",
            choices=("index", "create"),
        ),
        Setting(
            "document.format",
            "value: the document is the value, a JSON object. record: it has topic, key, value, headers and the place "
            "in the log.",
            default="value",
            choices=("value", "record"),
        ),
        Setting(
            "timestamp.field",
            "Member of the document that gets the time at which the message was stored, unless it has it; data streams "
            "need @timestamp.",
        ),
        Setting("batch.size", "Documents of a request.", SettingType.INT, 2000, least=1, most=100_000),
        Setting("bulk.size.bytes", "Bytes of a request.", SettingType.INT, 5 << 20, least=1, most=64 << 20),
        Setting("max.in.flight.requests", "Requests at a time.", SettingType.INT, 5, least=1, most=64),
        *retries(5),
        *timeouts(_CONNECT_MS, _REQUEST_MS),
        *TLS,
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        if settings["connection.api.key"] and settings["connection.username"]:
            return {"connection.api.key": "there is a user, too"}
        return {}

    def task(self) -> SinkTask:
        return ElasticsearchSinkTask()


class ElasticsearchSinkTask(SinkTask):
    """Writes documents in bulk requests."""

    _client: HttpClient | None = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._index = Name(settings["index"])
        self._urls = [url.rstrip("/") + _BULK for url in settings["connection.url"]]
        self._url = 0
        self._headers = basic_auth(settings["connection.username"], settings["connection.password"])
        self._headers["Content-Type"] = "application/x-ndjson"
        if settings["connection.api.key"]:
            self._headers["Authorization"] = f"ApiKey {settings['connection.api.key']}"
        connections = settings["max.in.flight.requests"]
        self._client = http_client(context, settings, _CONNECT_MS, _REQUEST_MS, connections, _MAX_ANSWER)

    async def put(self, records: Sequence[SinkRecord]) -> None:
        items = list(writable(records, self._lines, self._context))
        batches = list(by_size(items, self._settings["batch.size"], self._settings["bulk.size.bytes"]))
        await at_most(self._settings["max.in.flight.requests"], batches, self._deliver)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _deliver(self, batch: Sequence[Item]) -> None:
        await in_halves(batch, self._deliver_half, self._context)

    async def _deliver_half(self, batch: Sequence[Item]) -> None:
        left = list(batch)
        await tried_again(partial(self._write, left), self._settings["max.retries"], self._settings["retry.backoff.ms"])

    async def _write(self, left: list[Item]) -> None:
        """Write documents, and leave those in `left` that Elasticsearch has no room for now. Raises `RetriableError` if
        there are any."""
        assert self._client is not None
        url = self._urls[self._url % len(self._urls)]
        try:
            answer = await self._client.send(url, b"".join(lines for _, lines in left), self._headers)
        except RetriableError:
            self._url += 1
            raise
        if answer.status == _TOO_LARGE:
            raise Refused(str(answer.error()))
        if not answer.is_success:
            raise answer.error()
        results = _results(answer.body, len(left))
        waiting: list[Item] = []
        reason = ""
        for item, (status, error) in zip(left, results, strict=True):
            if status in {429, 503}:
                waiting.append(item)
                reason = error
            elif status >= 300 and status != _EXISTS:
                self._context.reject(item[0], ConnectError(f"status {status}: {error}"))
        left[:] = waiting
        if waiting:
            raise RetriableError(f"{len(waiting)} documents have to wait: {reason}")

    def _lines(self, record: SinkRecord) -> bytes:
        is_record = self._settings["document.format"] == "record"
        document = row(record) if is_record else dict(json_object(record))
        if name := self._settings["timestamp.field"]:
            document.setdefault(name, iso(record.timestamp_ms))
        identity = str(record.position) if self._settings["key.ignore"] else record.key
        if identity is None or not 0 < len(identity.encode()) <= _MAX_ID:
            raise DataError(f"the key of the message is not an id of 1 to {_MAX_ID} bytes")
        action = {self._settings["write.method"]: {"_index": _index_name(self._index.of(record)), "_id": identity}}
        return to_json(action) + b"\n" + to_json(document) + b"\n"


def _index_name(text: str) -> str:
    name = _FORBIDDEN.sub("-", text.lower()).lstrip("-_+")
    if not name or name in {".", ".."} or len(name.encode()) > _MAX_INDEX:
        raise DataError(f"{text[:60]!r} cannot be the name of an index")
    return name


def _results(body: bytes, count: int) -> list[tuple[int, str]]:
    """The status of each document of an answer, with its error."""
    try:
        found: Any = orjson.loads(body)
        items = [next(iter(item.values())) for item in found["items"]]
        results = [(item["status"], _reason(item.get("error"))) for item in items]
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise ConnectError("the answer is not that of a bulk request of Elasticsearch") from None
    if len(results) != count:
        raise ConnectError(f"the answer is about {len(results)} documents, not {count}")
    return results


def _reason(error: Any) -> str:
    if not isinstance(error, dict):
        return ""
    return " ".join(f"{error.get('type', '')}: {error.get('reason', '')}".split())[:_MAX_REASON]
