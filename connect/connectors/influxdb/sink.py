"""`influxdb-sink`: numbers of messages to InfluxDB 2 and 3 (`/api/v2/write`) or 1 (`/write`), in its line protocol."""

import gzip
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from connect.api import (
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
from connect.connectors.common.batches import Refused, at_most, by_size, in_halves, tried_again, writable
from connect.connectors.common.http_settings import basic_auth, http_client, retries, timeouts, url_problem
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.tls import TLS
from connect.connectors.common.values import at_path, parsed
from connect.connectors.influxdb.line_protocol import TYPES, field_value, flat, line
from connect.net.http_client import HttpClient

_CONNECT_MS: Final = "influxdb.connect.timeout.ms"
_REQUEST_MS: Final = "influxdb.request.timeout.ms"
_REFUSED: Final = (400, 413, 422)  # because of a point, or because of the size
_NS_OF_MS: Final = 1_000_000
# Nanoseconds of `influxdb.timeunit`.
_UNITS: Final = {"NANOSECONDS": 1, "MICROSECONDS": 1000, "MILLISECONDS": 1_000_000, "SECONDS": 1_000_000_000}


def _tags_of(settings: Settings) -> dict[str, Name]:
    """The tags of `tags`. Raises ValueError."""
    found = {}
    for each in settings["tags"]:
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise ValueError("tags are such as device=${level2}")
        found[name] = Name(text)
    return found


def _fields_of(settings: Settings) -> dict[str, str | None]:
    """The types of `fields`; empty: all fields. Raises ValueError."""
    found: dict[str, str | None] = {}
    for each in settings["fields"]:
        name, _, kind = each.partition(":")
        if kind and kind not in TYPES:
            raise ValueError(f"the type of a field is one of {', '.join(TYPES)}, not {kind!r}")
        found[name] = kind or None
    return found


class InfluxDbSink(SinkConnector):
    """Writes a point for each message, at least once. A point that is written again replaces itself."""

    name = "influxdb-sink"
    description = "writes points in InfluxDB's line protocol"
    settings = (
        Setting("influxdb.url", "Where InfluxDB is.", required=True, importance=Importance.HIGH, check=url_problem),
        Setting("influxdb.bucket", "Bucket of InfluxDB 2 or 3.", importance=Importance.HIGH),
        Setting("influxdb.org.id", "Organization of InfluxDB 2: its id or its name.", importance=Importance.HIGH),
        Setting("influxdb.token", "Token of InfluxDB 2 or 3.", SettingType.PASSWORD, importance=Importance.HIGH),
        Setting("influxdb.db", "Database of InfluxDB 1, in place of a bucket.", importance=Importance.HIGH),
        Setting("influxdb.retention.policy", "Retention policy of InfluxDB 1.", importance=Importance.LOW),
        Setting("influxdb.username", "User of InfluxDB 1."),
        Setting("influxdb.password", "Password of that user.", SettingType.PASSWORD),
        Setting(
            "measurement.name.format",
            f"Measurement of a message. It may have {KINDS}.",
            default="${level1}",
            importance=Importance.HIGH,
            check=problem_of,
        ),
        Setting(
            "tags",
            "Tags, such as device=${level2},unit=${value.unit}. A tag that a message does not have is left out.",
            SettingType.LIST,
            [],
            importance=Importance.HIGH,
        ),
        Setting(
            "fields",
            "Fields that are written: names as a_b for the member b of a, with a type if numbers are not to be floats: "
            "count:integer. Without it, all numbers, texts and truth values are.",
            SettingType.LIST,
            [],
        ),
        Setting(
            "event.time.fieldname",
            "Member of the value with the time of the point: a number, or ISO 8601. Without it, the time at which the "
            "message was stored.",
        ),
        Setting("influxdb.timeunit", "Unit of such a number.", default="MILLISECONDS", choices=tuple(_UNITS)),
        Setting("influxdb.gzip.enable", "Compress requests.", SettingType.BOOLEAN, True, importance=Importance.LOW),
        Setting("batch.size", "Points of a request.", SettingType.INT, 5000, least=1, most=100_000),
        Setting("batch.bytes", "Bytes of a request.", SettingType.INT, 4 << 20, least=1, most=64 << 20),
        Setting("max.in.flight.requests", "Requests at a time.", SettingType.INT, 2, least=1, most=64),
        *retries(3),
        *timeouts(_CONNECT_MS, _REQUEST_MS),
        *TLS,
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        problems = {}
        if bool(settings["influxdb.bucket"]) == bool(settings["influxdb.db"]):
            problems["influxdb.bucket"] = "either a bucket or a database (influxdb.db) is required"
        for name, read in (("tags", _tags_of), ("fields", _fields_of)):
            try:
                read(settings)
            except ValueError as error:
                problems[name] = str(error)
        return problems

    def task(self) -> SinkTask:
        return InfluxDbSinkTask()


class InfluxDbSinkTask(SinkTask):
    """Writes points in batches."""

    _client: HttpClient | None = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._measurement = Name(settings["measurement.name.format"])
        self._tags = _tags_of(settings)
        self._fields = _fields_of(settings)
        self._headers = {"Content-Type": "text/plain; charset=utf-8"}
        if settings["influxdb.gzip.enable"]:
            self._headers["Content-Encoding"] = "gzip"
        if settings["influxdb.bucket"]:
            query = {"bucket": settings["influxdb.bucket"], "org": settings["influxdb.org.id"], "precision": "ns"}
            if settings["influxdb.token"]:
                self._headers["Authorization"] = f"Token {settings['influxdb.token']}"
            path = "api/v2/write"
        else:
            query = {"db": settings["influxdb.db"], "rp": settings["influxdb.retention.policy"], "precision": "ns"}
            self._headers |= basic_auth(settings["influxdb.username"], settings["influxdb.password"])
            path = "write"
        parameters = urlencode({name: text for name, text in query.items() if text})
        self._url = f"{settings['influxdb.url'].rstrip('/')}/{path}?{parameters}"
        self._client = http_client(context, settings, _CONNECT_MS, _REQUEST_MS, settings["max.in.flight.requests"])

    async def put(self, records: Sequence[SinkRecord]) -> None:
        points = list(writable(records, self._point, self._context))
        batches = list(by_size(points, self._settings["batch.size"], self._settings["batch.bytes"]))
        await at_most(self._settings["max.in.flight.requests"], batches, self._deliver)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _deliver(self, batch: Sequence[tuple[SinkRecord, bytes]]) -> None:
        await in_halves(batch, self._write, self._context)

    async def _write(self, batch: Sequence[tuple[SinkRecord, bytes]]) -> None:
        body = b"".join(point for _, point in batch)
        if self._settings["influxdb.gzip.enable"]:
            body = gzip.compress(body, 1)
        assert self._client is not None
        answer = await tried_again(
            partial(self._client.send, self._url, body, self._headers),
            self._settings["max.retries"],
            self._settings["retry.backoff.ms"],
        )
        if answer.status in _REFUSED:
            raise Refused(str(answer.error()))
        if not answer.is_success:
            raise answer.error()

    def _point(self, record: SinkRecord) -> bytes:
        value = parsed(record.value)
        given = flat(value)
        tags = {name: text for name, each in self._tags.items() if (text := each.of_if_any(record))}
        time_field = self._settings["event.time.fieldname"]
        if self._fields:
            fields = {name: field_value(given[name], kind) for name, kind in self._fields.items() if name in given}
        else:
            used = {time_field.replace(".", "_")} if time_field else set()
            fields = {name: field_value(each, None) for name, each in given.items() if name not in used}
        if time_field:
            at_ns = _nanoseconds(at_path(value, time_field), _UNITS[self._settings["influxdb.timeunit"]])
        else:
            # Points with the same tags and time replace one another: the offset makes the times of messages differ.
            at_ns = record.timestamp_ms * _NS_OF_MS + record.offset % _NS_OF_MS
        return line(self._measurement.of(record), tags, fields, at_ns).encode() + b"\n"


def _nanoseconds(value: Any, unit: int) -> int:
    """The time of a number in a unit of nanoseconds, or of a text in ISO 8601 (UTC if it names no zone)."""
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            return round(at.timestamp() * 1_000_000) * 1000
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value * unit if isinstance(value, int) else round(value * unit)
    except (ValueError, OverflowError):
        pass
    raise DataError(f"{str(value)[:40]!r} is not a time")
