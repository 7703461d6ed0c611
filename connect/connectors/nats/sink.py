"""`nats-sink`: messages of the log go to streams of NATS JetStream."""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

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
from connect.connectors.common.batches import at_most
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, alias_settings, cross
from connect.connectors.common.headers import merged
from connect.connectors.common.topic_mapping import MAPPING, TopicMapping
from connect.connectors.common.values import raw
from connect.connectors.nats.settings import SERVER_SETTINGS, connected, where
from connect.connectors.nats.subjects import subject_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

_NO_NAME: Final = re.compile(r"[^!-9;-~]")  # what the name of a header does not have
_OF_SERVER: Final = "nats-"  # headers that tell the server what to do


class NatsSink(SinkConnector):
    """Publishes to JetStream, which drops what it has already."""

    name = "nats-sink"
    description = "publishes messages to streams of NATS JetStream"
    value_converter = "raw"
    settings = (
        *SERVER_SETTINGS,
        MAPPING,
        Setting("nats.stream", "The stream that has to take the messages; without it, the one that has the subject."),
        Setting(
            "nats.max.in.flight",
            "Messages that are sent before the first of them is acknowledged.",
            SettingType.INT,
            500,
            importance=Importance.LOW,
            least=1,
            most=10_000,
        ),
        *alias_settings(sink=True),
    )

    def task(self) -> SinkTask:
        return NatsSinkTask()


def _size(headers: dict[str, str]) -> int:
    """Bytes of headers on the wire: a line of the protocol's version, a line for each, and an empty one."""
    return 12 + sum(len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())


class NatsSinkTask(SinkTask):
    """Publishes a batch, several messages at a time, and waits for all acknowledgements."""

    _client: "Client | None" = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._target = settings[TARGET_ALIAS] or where(settings)
        self._stream = settings["nats.stream"]
        await self._connect()

    async def _connect(self) -> "JetStreamContext":
        if self._client is None or self._client.is_closed:
            self._client = await connected(self._settings, self._context)
        return self._client.jetstream(timeout=self._settings["nats.request.timeout.ms"] / 1_000)

    async def put(self, records: Sequence[SinkRecord]) -> None:
        stream = await self._connect()
        await at_most(self._settings["nats.max.in.flight"], records, partial(self._publish, stream))

    async def _publish(self, stream: "JetStreamContext", record: SinkRecord) -> None:
        from nats import errors  # noqa: PLC0415
        from nats.js import errors as stream_errors  # noqa: PLC0415

        headers = cross(record.headers, self._settings[SOURCE_ALIAS], self._target)
        if headers is None:
            return
        try:
            subject, payload = subject_of(self._map(record.topic)), raw(record.value)
            own = self._headers(record, headers)
            assert self._client is not None
            if len(payload) + _size(own) > self._client.max_payload:  # the client compares the payload alone
                raise errors.MaxPayloadError
            await stream.publish(subject, payload, headers=own)
        except DataError as error:
            self._context.reject(record, error)
        except errors.MaxPayloadError:
            self._context.reject(
                record, DataError("the message with its headers is larger than the servers' max_payload")
            )
        except stream_errors.NoStreamResponseError:
            await self._explain(stream, record, subject)
        except stream_errors.BadRequestError as error:
            self._context.reject(record, ConnectError(f"NATS refuses the message: {error.description}"))
        except (errors.Error, OSError) as error:
            raise RetriableError(f"NATS does not take a message: {str(error) or type(error).__name__}") from error

    async def _explain(self, stream: "JetStreamContext", record: SinkRecord, subject: str) -> None:
        """Nobody took a subject: reject the record if no stream has it. Else the stream is without a leader."""
        from nats import errors  # noqa: PLC0415
        from nats.js.errors import NotFoundError  # noqa: PLC0415

        try:
            name = await stream.find_stream_name_by_subject(subject)
        except NotFoundError:
            self._context.reject(record, ConnectError(f"no stream of NATS has the subject {subject}"))
        except errors.Error as error:
            raise RetriableError(f"JetStream does not answer: {str(error) or type(error).__name__}") from error
        else:
            raise RetriableError(f"the stream {name} does not answer")

    def _headers(self, record: SinkRecord, headers: list[tuple[str, str]]) -> dict[str, str]:
        """User properties, the content type, the stream that has to take the message, and the id by which it knows one
        that it has."""
        found = {
            _NO_NAME.sub("-", name): value
            for name, value in merged(headers).items()
            if name and not name.lower().startswith(_OF_SERVER)
        }
        if record.content_type is not None:
            found["Content-Type"] = record.content_type
        if self._stream is not None:
            found["Nats-Expected-Stream"] = self._stream
        found["Nats-Msg-Id"] = f"{self._context.connector}-{record.position}-{record.timestamp_ms}"
        return found

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
