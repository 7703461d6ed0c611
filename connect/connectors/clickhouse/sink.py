"""`clickhouse-sink`: rows in a table of ClickHouse, over its HTTP interface. Its settings are named as those of
ClickHouse's own sink for Kafka Connect."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final
from urllib.parse import urlencode

from connect.api import Importance, Setting, Settings, SettingType, SinkConnector, SinkContext, SinkRecord, SinkTask
from connect.connectors.common.batches import Refused, by_size, in_halves, tried_again, writable
from connect.connectors.common.http_settings import http_client, retries, timeouts
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.tls import TLS
from connect.connectors.common.values import COLUMNS, json_object, row, to_json
from connect.net.http_client import HttpClient

_CONNECT_MS: Final = "connect.timeout.ms"
_REQUEST_MS: Final = "request.timeout.ms"
# What a table has no column for is left out, times are ISO 8601, and an answer comes when the insert is done.
_DEFAULTS: Final = {
    "input_format_skip_unknown_fields": "1",
    "date_time_input_format": "best_effort",
    "wait_end_of_query": "1",
}
_HOST: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_REFUSED: Final = (400, 413)  # for rows that ClickHouse cannot read, or too many of them
_OURS: Final = ("query", "database", "user", "password", "insert_deduplication_token", "wait_end_of_query")


def _server_settings_of(settings: Settings) -> dict[str, str]:
    """The settings of `clickhouseSettings`. Raises ValueError."""
    found = {}
    for each in settings["clickhouseSettings"]:
        name, equals, value = each.partition("=")
        if not equals or not name.isidentifier() or name in _OURS:
            raise ValueError(f"settings of ClickHouse are such as async_insert=1, and none of {', '.join(_OURS)}")
        found[name] = value
    return found


def _host_problem(host: str) -> str | None:
    return None if _HOST.fullmatch(host) else "the name or the address of a host is expected"


class ClickHouseSink(SinkConnector):
    """Inserts a row for each message, at least once. A request that the task repeats is not inserted twice."""

    name = "clickhouse-sink"
    description = "inserts rows into a table of ClickHouse"
    settings = (
        Setting("hostname", "Host of ClickHouse.", required=True, importance=Importance.HIGH, check=_host_problem),
        Setting("port", "Port of its HTTP interface.", SettingType.INT, 8443, least=1, most=65535),
        Setting("ssl", "Connect by TLS.", SettingType.BOOLEAN, True),
        Setting("database", "Database.", default="default", importance=Importance.HIGH),
        Setting(
            "table",
            f"Table of a message. It may have {KINDS}.",
            default="${level1}",
            importance=Importance.HIGH,
            check=problem_of,
        ),
        Setting("username", "User.", default="default"),
        Setting("password", "Password of that user.", SettingType.PASSWORD, importance=Importance.HIGH),
        Setting(
            "row.format",
            "value: the members of the value, a JSON object, are columns. record: the columns are "
            f"{', '.join(COLUMNS)}.",
            default="value",
            choices=("value", "record"),
        ),
        Setting(
            "metadata.columns",
            "With row.format=value: columns that rows have besides, such as topic,stored_at,position.",
            SettingType.LIST,
            [],
            choices=COLUMNS,
        ),
        Setting(
            "clickhouseSettings",
            "Settings of ClickHouse for each insert, such as input_format_skip_unknown_fields=0.",
            SettingType.LIST,
            [],
            importance=Importance.LOW,
        ),
        Setting("batch.size", "Rows of a request.", SettingType.INT, 10_000, least=1, most=1_000_000),
        Setting("batch.bytes", "Bytes of a request.", SettingType.INT, 8 << 20, least=1, most=64 << 20),
        *retries(5),
        *timeouts(_CONNECT_MS, _REQUEST_MS),
        *TLS,
    )

    def check(self, settings: Settings) -> Mapping[str, str]:
        try:
            _server_settings_of(settings)
        except ValueError as error:
            return {"clickhouseSettings": str(error)}
        return {}

    def task(self) -> SinkTask:
        return ClickHouseSinkTask()


class ClickHouseSinkTask(SinkTask):
    """Inserts rows in batches, one request at a time, as ClickHouse advises."""

    _client: HttpClient | None = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._table = Name(settings["table"])
        scheme = "https" if settings["ssl"] else "http"
        self._query = _DEFAULTS | _server_settings_of(settings) | {"database": settings["database"]}
        host = settings["hostname"]
        self._url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings['port']}/"
        self._headers = {"X-ClickHouse-User": settings["username"], "Content-Type": "application/x-ndjson"}
        if settings["password"]:
            self._headers["X-ClickHouse-Key"] = settings["password"]
        self._client = http_client(context, settings, _CONNECT_MS, _REQUEST_MS, 1)

    async def put(self, records: Sequence[SinkRecord]) -> None:
        by_table: dict[str, list[tuple[SinkRecord, bytes]]] = {}
        for record, (table, line) in writable(records, self._row, self._context):
            by_table.setdefault(table, []).append((record, line))
        for table, rows in by_table.items():
            for batch in by_size(rows, self._settings["batch.size"], self._settings["batch.bytes"]):
                await in_halves(batch, partial(self._insert, table), self._context)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _insert(self, table: str, batch: Sequence[tuple[SinkRecord, bytes]]) -> None:
        # The same when the batch is sent again: ClickHouse then inserts nothing.
        about = ",".join([self._context.connector, table, *(str(record.position) for record, _ in batch)])
        query = self._query | {
            "query": f"INSERT INTO {_quoted(table)} FORMAT JSONEachRow",
            "insert_deduplication_token": blake2b(about.encode(), digest_size=16).hexdigest(),
        }
        body = b"".join(line for _, line in batch)
        assert self._client is not None
        answer = await tried_again(
            partial(self._client.send, f"{self._url}?{urlencode(query)}", body, self._headers),
            self._settings["max.retries"],
            self._settings["retry.backoff.ms"],
        )
        if answer.status in _REFUSED:
            raise Refused(str(answer.error()))
        if not answer.is_success:
            raise answer.error()

    def _row(self, record: SinkRecord) -> tuple[str, bytes]:
        if self._settings["row.format"] == "record":
            made = row(record)
        else:
            made = dict(json_object(record))
            if names := self._settings["metadata.columns"]:
                about = row(record)
                made |= {name: about[name] for name in names}
        return self._table.of(record), to_json(made) + b"\n"


def _quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
