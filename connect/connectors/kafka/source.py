"""`kafka-source`: records of topics of Kafka go into the log."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from connect.api import (
    ConnectError,
    Importance,
    Setting,
    Settings,
    SettingType,
    SourceConnector,
    SourceContext,
    SourceRecord,
    SourceTask,
)
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, alias_settings, cross
from connect.connectors.common.topic_mapping import MAPPING, TopicMapping
from connect.connectors.common.unacknowledged import Unacknowledged
from connect.connectors.kafka.settings import CONTENT_TYPE, SERVER_SETTINGS, TOPIC, check, explained, options, where

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

_MAX_RECORDS: Final = 1_000
_WAIT_MS: Final = 5_000

log = logging.getLogger(__name__)


class KafkaSource(SourceConnector):
    """Reads topics as a consumer group, whose members are its tasks."""

    name = "kafka-source"
    description = "reads topics of Kafka as a consumer group"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        Setting("kafka.topics", "The topics.", SettingType.LIST, required=True, importance=Importance.HIGH),
        Setting("group.id", "The consumer group. By default `sluice-` and the connector's name."),
        Setting("auto.offset.reset", "Where a new group begins.", default="earliest", choices=("earliest", "latest")),
        Setting("isolation.level", "Whether records of transactions that are not committed are left out.",
                default="read_committed", choices=("read_committed", "read_uncommitted")),
        Setting("max.poll.interval.ms", "A task that cannot store records for so long gives its partitions to others.",
                SettingType.INT, 300_000, importance=Importance.LOW, least=1_000),
        Setting("topic.header.enabled",
                f"Whether the header `{TOPIC}`, which `kafka-sink` sets, is the topic. Else it is the topic of Kafka.",
                SettingType.BOOLEAN, default=False),
        MAPPING,
        *alias_settings(sink=False),
    )  # fmt: skip

    def check(self, settings: Settings) -> Mapping[str, str]:
        return check(settings)

    def task_settings(self, settings: Mapping[str, str], most: int) -> list[dict[str, str]]:
        return [dict(settings) for _ in range(most)]

    def task(self) -> SourceTask:
        return KafkaSourceTask()


class KafkaSourceTask(SourceTask):
    """Commits the offsets of what is stored."""

    def __init__(self) -> None:
        self._consumer: AIOKafkaConsumer | None = None
        self._unacknowledged: Unacknowledged[tuple[TopicPartition, int]] = Unacknowledged()

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._source = settings[SOURCE_ALIAS] or where(settings)
        await self._connect()

    async def _connect(self) -> "AIOKafkaConsumer":
        from aiokafka import AIOKafkaConsumer  # noqa: PLC0415

        if self._consumer is None:
            self._unacknowledged.clear()
            settings = self._settings
            consumer = AIOKafkaConsumer(
                *settings["kafka.topics"],
                **await options(settings, self._context),
                group_id=settings["group.id"] or f"sluice-{self._context.connector}",
                enable_auto_commit=False,
                auto_offset_reset=settings["auto.offset.reset"],
                isolation_level=settings["isolation.level"],
                max_poll_interval_ms=settings["max.poll.interval.ms"],
            )
            try:
                with explained(settings):
                    await consumer.start()
            except BaseException:
                await consumer.stop()
                raise
            self._consumer = consumer
        return self._consumer

    async def poll(self) -> Sequence[SourceRecord]:
        records: list[SourceRecord] = []
        while not records:
            consumer = await self._connect()
            try:
                with explained(self._settings):
                    batches = await consumer.getmany(timeout_ms=_WAIT_MS, max_records=_MAX_RECORDS)
            except ConnectError:
                await self.stop()  # a consumer that has met an error may not come back from it
                raise
            for partition, batch in batches.items():
                for each in batch:
                    record = self._record(each)
                    receipt = (partition, each.offset + 1)
                    if record is not None:
                        records.append(record)
                        self._unacknowledged.add(record, receipt)
                    else:
                        self._unacknowledged.skip(receipt)  # else its partition is committed with what follows
        return records

    def _record(self, record: "ConsumerRecord[Any, Any]") -> SourceRecord | None:
        """None for a record that was here before."""
        given = [(name, value.decode(errors="replace")) for name, value in record.headers if value is not None]
        texts = dict(given)
        topic = texts.get(TOPIC) if self._settings["topic.header.enabled"] else None
        own = (CONTENT_TYPE,) if topic is None else (CONTENT_TYPE, TOPIC)
        headers = cross([each for each in given if each[0] not in own], self._source, self._settings[TARGET_ALIAS])
        if headers is None:
            return None
        return SourceRecord(
            topic=self._map(topic or record.topic),
            value=record.value or b"",
            key=None if record.key is None else record.key.decode(errors="replace"),
            headers=headers,
            timestamp_ms=record.timestamp,
            content_type=texts.get(CONTENT_TYPE),
        )

    async def committed(self, records: Sequence[SourceRecord]) -> None:
        from aiokafka import errors  # noqa: PLC0415

        offsets = dict(self._unacknowledged.take(records))  # the last of each partition
        if self._consumer is None:
            return
        mine = self._consumer.assignment()
        offsets = {partition: offset for partition, offset in offsets.items() if partition in mine}
        if not offsets:
            return
        with explained(self._settings):
            try:
                await self._consumer.commit(offsets)
            except (errors.CommitFailedError, errors.IllegalStateError):
                log.warning(
                    "partitions of %s are at another task now, which stores their last records again", self._source
                )

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()
