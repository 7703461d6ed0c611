"""`redis-sink`: messages of the log go to Redis streams.

The entry of a message has the fields `value`, `topic`, `id` (its position in the log), `key` and `content-type` if it
has them, and `header.NAME` for each user property.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

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
from connect.connectors.common.batches import writable
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, alias_settings, cross
from connect.connectors.common.headers import merged
from connect.connectors.common.placeholders import KINDS, Name, problem_of
from connect.connectors.common.values import raw
from connect.connectors.redis.settings import SERVER_SETTINGS, connected, explained, is_temporary, where

if TYPE_CHECKING:
    from redis.asyncio import Redis

HEADER: Final = "header."  # and the name of a user property: a field
_BATCH: Final = 1_000  # entries of one pipeline

Entry = tuple[str, dict[Any, Any]]  # the stream, and its fields


class RedisSink(SinkConnector):
    """Adds an entry for each message, at least once."""

    name = "redis-sink"
    description = "adds messages to Redis streams"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        Setting("redis.key", f"The stream. It may have {KINDS}.", default="${topic}", check=problem_of),
        Setting(
            "redis.stream.maxlen",
            "About how many entries a stream keeps; 0: all of them.",
            SettingType.INT,
            0,
            importance=Importance.MEDIUM,
            least=0,
        ),
        *alias_settings(sink=True),
    )

    def task(self) -> SinkTask:
        return RedisSinkTask()


class RedisSinkTask(SinkTask):
    """Sends XADD in pipelines."""

    _client: "Redis | None" = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._key = Name(settings["redis.key"])
        self._maxlen = settings["redis.stream.maxlen"] or None
        self._target = settings[TARGET_ALIAS] or where(settings)
        self._client = await connected(settings, context)

    async def put(self, records: Sequence[SinkRecord]) -> None:
        entries = [each for each in writable(records, self._entry, self._context) if each[1] is not None]
        for begin in range(0, len(entries), _BATCH):
            await self._add(entries[begin : begin + _BATCH])

    async def _add(self, entries: Sequence[tuple[SinkRecord, Entry | None]]) -> None:
        if self._client is None:
            self._client = await connected(self._settings, self._context)
        with explained(self._settings):
            pipeline = self._client.pipeline(transaction=False)
            for _, entry in entries:
                if entry is not None:
                    pipeline.xadd(*entry, maxlen=self._maxlen)
            results = await pipeline.execute(raise_on_error=False)
        refused = [(record, each) for (record, _), each in zip(entries, results, strict=True) if _is_error(each)]
        for _, error in refused:
            if is_temporary(error):
                raise RetriableError(f"Redis at {where(self._settings)} takes no entries: {error}")
        for record, error in refused:
            self._context.reject(record, ConnectError(f"Redis refuses the entry: {error}"))

    def _entry(self, record: SinkRecord) -> Entry | None:
        """None for a message that has been there. Raises `DataError`."""
        headers = cross(record.headers, self._settings[SOURCE_ALIAS], self._target)
        if headers is None:
            return None
        stream = self._key.of(record)
        if not stream:
            raise DataError("the name of the stream is empty")
        fields: dict[Any, Any] = {"value": raw(record.value), "topic": record.topic, "id": record.position}
        if record.key is not None:
            fields["key"] = record.key
        if record.content_type is not None:
            fields["content-type"] = record.content_type
        fields.update((f"{HEADER}{name}", value) for name, value in merged(headers).items())
        return stream, fields

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _is_error(result: Any) -> bool:
    return isinstance(result, Exception)
