"""`nats-source`: messages of a stream of NATS JetStream go into the log."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from connect.api import (
    ConnectError,
    Importance,
    RetriableError,
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
from connect.connectors.nats.settings import SERVER_SETTINGS, connected, where
from connect.connectors.nats.subjects import topic_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

_BATCH: Final = 200
_BATCH_BYTES: Final = 4 << 20
_WAIT_S: Final = 5.0  # of one request; the next one follows at once
_MAX_HELD_BYTES: Final = 64 << 20
_NOT_PROPERTIES: Final = ("nats-", "status", "description", "content-type")  # headers of the server, and of its own


class NatsSource(SourceConnector):
    """Reads a stream by a durable pull consumer, which all its tasks share."""

    name = "nats-source"
    description = "reads a stream of NATS JetStream"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        Setting("nats.stream", "The stream.", required=True, importance=Importance.HIGH),
        Setting("nats.subjects", "Which subjects of it; without any, all.", SettingType.LIST, []),
        Setting("nats.durable", "The durable consumer. By default `sluice-` and the connector's name."),
        Setting(
            "nats.deliver.policy",
            "Where a new consumer begins: all, or new messages only.",
            default="all",
            choices=("all", "new"),
        ),
        Setting(
            "nats.max.ack.pending",
            "Messages that the server gives out before the first of them is stored.",
            SettingType.INT,
            1_000,
            importance=Importance.LOW,
            least=1,
            most=100_000,
        ),
        Setting(
            "nats.ack.wait.seconds",
            "The server gives a message out again that is not stored after this time.",
            SettingType.INT,
            60,
            importance=Importance.LOW,
            least=1,
        ),
        MAPPING,
        *alias_settings(sink=False),
    )

    def task_settings(self, settings: Mapping[str, str], most: int) -> list[dict[str, str]]:
        return [dict(settings) for _ in range(most)]

    def task(self) -> SourceTask:
        return NatsSourceTask()


class NatsSourceTask(SourceTask):
    """Acknowledges what is stored."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._pulls: JetStreamContext.PullSubscription | None = None
        self._unacknowledged: Unacknowledged[Msg] = Unacknowledged()
        self._batch = BatchSize(_BATCH, _BATCH_BYTES)

    async def start(self, settings: Settings, context: SourceContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._source = settings[SOURCE_ALIAS] or where(settings)
        await self._subscribe()

    async def _subscribe(self) -> "JetStreamContext.PullSubscription":
        from nats import errors  # noqa: PLC0415
        from nats.js import api  # noqa: PLC0415
        from nats.js.errors import BadRequestError, NotFoundError  # noqa: PLC0415

        if self._client is not None and self._pulls is not None and not self._client.is_closed:
            return self._pulls
        self._unacknowledged.clear()  # the server gives them out again
        settings = self._settings
        client = await connected(settings, self._context)
        durable = settings["nats.durable"] or f"sluice-{self._context.connector}"
        config = api.ConsumerConfig(
            durable_name=durable,
            deliver_policy=api.DeliverPolicy(settings["nats.deliver.policy"]),
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=settings["nats.ack.wait.seconds"],
            max_ack_pending=settings["nats.max.ack.pending"],
            filter_subjects=settings["nats.subjects"] or None,
        )
        stream = settings["nats.stream"]
        jetstream = client.jetstream(timeout=settings["nats.request.timeout.ms"] / 1_000)
        try:
            await jetstream.add_consumer(stream, config)
            pulls = await jetstream.pull_subscribe_bind(
                consumer=durable, stream=stream, pending_bytes_limit=_MAX_HELD_BYTES
            )
        except BaseException as error:
            await client.close()
            if isinstance(error, NotFoundError):
                raise ConnectError(f"NATS has no stream {stream}") from None
            if isinstance(error, BadRequestError):  # it stays wrong
                raise ConnectError(f"cannot read the stream {stream}: {error.description}") from None
            if not isinstance(error, errors.Error | OSError):
                raise
            raise RetriableError(f"cannot read the stream {stream}: {str(error) or type(error).__name__}") from None
        self._client, self._pulls = client, pulls
        return pulls

    async def poll(self) -> Sequence[SourceRecord]:
        from nats import errors  # noqa: PLC0415

        records: list[SourceRecord] = []
        while not records:
            pulls = await self._subscribe()
            try:
                messages = await pulls.fetch(self._batch.count, timeout=_WAIT_S)
                self._batch.note(max(len(message.data) for message in messages))
                for message in messages:
                    record = self._record(message)
                    if record is not None:
                        records.append(record)
                        self._unacknowledged.add(record, message)
                    elif not self._unacknowledged.skip(message):
                        await message.ack()
            except errors.TimeoutError:
                continue
            except (errors.Error, OSError) as error:
                await self.stop()
                raise RetriableError(f"cannot read from NATS: {str(error) or type(error).__name__}") from error
        return records

    def _record(self, message: "Msg") -> SourceRecord | None:
        """None for a message that was here before."""
        given = message.headers or {}
        headers = [each for each in given.items() if not each[0].lower().startswith(_NOT_PROPERTIES)]
        crossed = cross(headers, self._source, self._settings[TARGET_ALIAS])
        if crossed is None:
            return None
        return SourceRecord(
            topic=self._map(topic_of(message.subject)),
            value=message.data,
            headers=crossed,
            timestamp_ms=int(message.metadata.timestamp.timestamp() * 1_000),
            content_type=given.get("Content-Type"),
        )

    async def committed(self, records: Sequence[SourceRecord]) -> None:
        from nats import errors  # noqa: PLC0415

        messages = self._unacknowledged.take(records)
        if not messages or self._client is None:
            return
        try:
            for message in messages:
                await message.ack()
            await self._client.flush()
        except (errors.Error, OSError) as error:  # they are given out again
            raise RetriableError(f"cannot acknowledge to NATS: {str(error) or type(error).__name__}") from error

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
