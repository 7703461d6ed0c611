"""`redis-source`: entries of Redis streams go into the log.

The payload is the field `value`, and the fields `header.NAME` and others are user properties. Of an entry without that
field, the payload is a JSON object of all its fields.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from connect.api import (
    Importance,
    Setting,
    Settings,
    SettingType,
    SourceConnector,
    SourceContext,
    SourceRecord,
    SourceTask,
)
from connect.connectors.common.batch_size import BatchSize
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, alias_settings, cross
from connect.connectors.common.topic_mapping import MAPPING, TopicMapping
from connect.connectors.common.unacknowledged import Unacknowledged
from connect.connectors.redis.settings import BLOCK_S, SERVER_SETTINGS, connected, explained, where
from connect.connectors.redis.sink import HEADER

if TYPE_CHECKING:
    from redis.asyncio import Redis

_BATCH: Final = 500
_BATCH_BYTES: Final = 4 << 20
_OWN: Final = ("value", "topic", "id", "key", "content-type")  # fields that are no user properties
_NEW: Final = ">"  # entries that the group has given to nobody

Place = tuple[str, bytes]  # a stream, and the id of an entry
Fields = Mapping[bytes, bytes]


class RedisSource(SourceConnector):
    """Reads streams as a consumer group, whose consumers are its tasks."""

    name = "redis-source"
    description = "reads Redis streams as a consumer group"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        Setting("redis.stream.name", "The streams.", SettingType.LIST, required=True, importance=Importance.HIGH),
        Setting("redis.stream.consumer.group", "The consumer group. By default `sluice-` and the connector's name."),
        Setting(
            "redis.stream.offset",
            "Where a new group begins: 0-0 is the oldest entry, $ the end, or behind an id.",
            default="0-0",
        ),
        Setting(
            "redis.stream.claim.idle.ms",
            "A task takes over entries of others in the group that these have not acknowledged for so long.",
            SettingType.INT,
            60_000,
            importance=Importance.LOW,
            least=1_000,
        ),
        Setting(
            "topic.field.enabled",
            "Whether the field `topic`, which `redis-sink` sets, is the topic. Else it is the name of the stream.",
            SettingType.BOOLEAN,
            default=False,
        ),
        MAPPING,
        *alias_settings(sink=False),
    )

    def task_settings(self, settings: Mapping[str, str], most: int) -> list[dict[str, str]]:
        return [dict(settings) for _ in range(most)]

    def task(self) -> SourceTask:
        return RedisSourceTask()


class RedisSourceTask(SourceTask):
    """Reads first what it was given before and did not acknowledge, then what is new."""

    def __init__(self) -> None:
        self._client: Redis | None = None
        self._unacknowledged: Unacknowledged[Place] = Unacknowledged()
        self._given: set[Place] = set()  # what waits to be stored
        self._pending: dict[str, bytes] = {}  # the streams whose pending entries are being read; behind which id
        self._claim_at = 0.0

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._settings = settings
        self._map = TopicMapping(settings["topic.mapping"])
        self._context = context
        self._source = settings[SOURCE_ALIAS] or where(settings)
        self._streams: list[str] = settings["redis.stream.name"]
        self._batch = BatchSize(_BATCH, _BATCH_BYTES // len(self._streams))  # entries of each stream
        self._group = settings["redis.stream.consumer.group"] or f"sluice-{context.connector}"
        self._consumer = f"{context.connector}-{context.task}"
        await self._connect()

    async def _connect(self) -> "Redis":
        from redis.exceptions import ResponseError  # noqa: PLC0415

        if self._client is None:
            client = await connected(self._settings, self._context)
            try:
                with explained(self._settings):
                    for stream in self._streams:
                        try:
                            offset = self._settings["redis.stream.offset"]
                            await client.xgroup_create(stream, self._group, offset, mkstream=True)
                        except ResponseError as error:
                            if not str(error).startswith("BUSYGROUP"):  # it exists
                                raise
            except BaseException:
                await client.aclose()
                raise
            self._client = client
            self._unacknowledged.clear()
            self._given.clear()
            self._pending = dict.fromkeys(self._streams, b"0")
            self._claim_at = 0.0
        return self._client

    async def poll(self) -> Sequence[SourceRecord]:
        records: list[SourceRecord] = []
        try:
            while not records:
                client = await self._connect()
                with explained(self._settings):
                    found = await self._read(client)
                    sizes = [sum(map(len, fields.values())) for _, entries in found for _, fields in entries if fields]
                    if sizes:
                        self._batch.note(max(sizes))
                    for stream, entries in found:
                        for identifier, fields in entries:
                            record = self._record(stream, fields)
                            place = (stream, identifier)
                            if record is None:
                                await client.xack(stream, self._group, identifier)
                            elif place not in self._given:
                                self._given.add(place)
                                self._unacknowledged.add(record, place)
                                records.append(record)
        except asyncio.CancelledError:
            raise
        except BaseException:
            await self._drop()
            raise
        return records

    async def _read(self, client: "Redis") -> list[tuple[str, list[tuple[bytes, Fields]]]]:
        """Some entries, in this order: own ones that were not acknowledged, those that others left, and new ones."""
        answer: Any  # by its annotations, what any version of the protocol may have
        for stream, behind in list(self._pending.items()):
            answer = await client.xreadgroup(self._group, self._consumer, {stream: behind}, count=self._batch.count)
            entries = answer[0][1] if answer else []
            if entries:
                self._pending[stream] = entries[-1][0]
                return [(stream, entries)]
            del self._pending[stream]
        loop = asyncio.get_running_loop()
        if loop.time() >= self._claim_at:
            idle_ms = self._settings["redis.stream.claim.idle.ms"]
            claimed = []
            for stream in self._streams:
                answer = await client.xautoclaim(stream, self._group, self._consumer, idle_ms, count=self._batch.count)
                claimed.append((stream, answer[1]))
            if any(entries for _, entries in claimed):
                return claimed
            self._claim_at = loop.time() + idle_ms / 1_000
        streams: Any = dict.fromkeys(self._streams, _NEW)
        block_ms = max(1, int(min(BLOCK_S, self._claim_at - loop.time()) * 1_000))
        answer = await client.xreadgroup(self._group, self._consumer, streams, count=self._batch.count, block=block_ms)
        return [(stream.decode(), entries) for stream, entries in answer]

    def _record(self, stream: str, fields: Fields) -> SourceRecord | None:
        """None for an entry that was here before, or is gone from its stream."""
        if not fields:
            return None
        texts = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
        value: Any = fields.get(b"value")
        if value is None:
            value, headers = json.dumps(texts, ensure_ascii=False).encode(), []
        else:
            headers = [(name.removeprefix(HEADER), text) for name, text in texts.items() if name not in _OWN]
        crossed = cross(headers, self._source, self._settings[TARGET_ALIAS])
        if crossed is None:
            return None
        topic = texts.get("topic") if self._settings["topic.field.enabled"] else None
        return SourceRecord(
            topic=self._map(topic or stream),
            value=value,
            key=texts.get("key"),
            headers=crossed,
            content_type=texts.get("content-type"),
        )

    async def committed(self, records: Sequence[SourceRecord]) -> None:
        places = self._unacknowledged.take(records)
        by_stream: dict[str, list[bytes]] = {}
        for stream, identifier in places:
            by_stream.setdefault(stream, []).append(identifier)
        if self._client is None:
            return
        try:
            with explained(self._settings):
                for stream, identifiers in by_stream.items():
                    await self._client.xack(stream, self._group, *identifiers)
        except BaseException:
            await self._drop()
            raise
        self._given.difference_update(places)

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def stop(self) -> None:
        await self._drop()
