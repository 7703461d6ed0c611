"""`sluice-sink`: messages go to another cluster of Sluice. One at each of two sites makes both active.

The user properties of a copy say where its message was published: `sluice-id` (`ALIAS:POSITION`), `sluice-time` (when
it was stored there, in milliseconds since 1970), and `sluice-cluster`, the clusters that it has been at.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from cloud_sdk import (
    Client,
    Credentials,
    InvalidArgument,
    MessagesRejected,
    NotAllowed,
    OutgoingMessage,
    SluiceError,
    Tls,
    Unauthenticated,
    Untrusted,
)
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
from connect.connectors.common.batches import Refused, in_halves, writable
from connect.connectors.common.clusters import SOURCE_ALIAS, TARGET_ALIAS, cross
from connect.connectors.common.expiry import seconds_left
from connect.connectors.common.tls import TLS
from connect.connectors.common.topic_mapping import MAPPING, TopicMapping
from connect.connectors.common.values import raw

ID: Final = "sluice-id"
TIME: Final = "sluice-time"
_RETRY_S: Final = 5.0  # by the client; then the worker tries again


def _host_problem(hosts: list[str]) -> str | None:
    for each in hosts:
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal():
            return f"HOST:PORT is expected, not {each!r}"
    return None


def _alias_problem(alias: str) -> str | None:
    return "a name has no comma and no colon" if "," in alias or ":" in alias else None


class SluiceSink(SinkConnector):
    """Copies messages to another cluster, in their order, at least once."""

    name: ClassVar[str] = "sluice-sink"
    description: ClassVar[str] = "copies messages to another cluster of Sluice"
    value_converter: ClassVar[str] = "raw"
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("sluice.host", "Nodes of the other cluster, HOST:PORT of gRPC.", SettingType.LIST, required=True,
                importance=Importance.HIGH, check=_host_problem),
        Setting("sluice.username", "The user name there."),
        Setting("sluice.password", "The password.", SettingType.PASSWORD),
        Setting("ssl.enabled", "Whether the port uses TLS.", SettingType.BOOLEAN, default=False),
        Setting(SOURCE_ALIAS, "The name of this cluster.", required=True, check=_alias_problem,
                importance=Importance.HIGH),
        Setting(TARGET_ALIAS, "The name of the other cluster.", required=True, check=_alias_problem,
                importance=Importance.HIGH),
        MAPPING,
        *TLS,
    )  # fmt: skip

    def task(self) -> SinkTask:
        return SluiceSinkTask()


class SluiceSinkTask(SinkTask):
    """Sends each batch in one call."""

    _client: Client | None = None

    async def start(self, settings: Settings, context: SinkContext) -> None:
        self._settings = settings
        self._context = context
        self._map = TopicMapping(settings["topic.mapping"])
        self._where = ",".join(settings["sluice.host"])
        for each in settings["sluice.host"]:
            host, _, port = each.rpartition(":")
            await context.require_allowed(host.strip("[]"), int(port))
        user, tls = settings["sluice.username"], None
        if settings["ssl.enabled"]:
            trusted, own = (
                str(context.require_path(path)) if path else None
                for path in (settings["ssl.truststore.location"], settings["ssl.keystore.location"])
            )
            tls = Tls(trusted, own, own)
        self._client = Client(
            settings["sluice.host"],
            name=f"connect-{context.connector}",
            retry_seconds=_RETRY_S,
            credentials=Credentials(user, settings["sluice.password"] or "") if user else None,
            tls=tls,
        )

    async def put(self, records: Sequence[SinkRecord]) -> None:
        made = writable(records, self._message, self._context)
        await in_halves(
            [(record, message) for record, message in made if message is not None], self._send, self._context
        )

    async def _send(self, batch: Sequence[tuple[SinkRecord, OutgoingMessage]]) -> None:
        """Rejects those that the other cluster does not take. Raises `Refused` if that does not say which."""
        assert self._client is not None
        try:
            await self._client.send_many(message for _, message in batch)
        except (Unauthenticated, Untrusted) as error:
            raise ConnectError(f"Sluice at {self._where}: {error}") from error
        except MessagesRejected as error:
            for index, reason in error.reasons.items():
                refused = Refused(f"Sluice at {self._where} refuses the message: {reason}")
                self._context.reject(batch[index][0], refused)
        except (InvalidArgument, NotAllowed) as error:
            raise Refused(f"Sluice at {self._where} refuses the message: {error}") from error
        except SluiceError as error:
            raise RetriableError(f"Sluice at {self._where}: {error}") from error

    def _message(self, record: SinkRecord) -> OutgoingMessage | None:
        """None for a message that has been there, or is expired. Raises `DataError`."""
        source = self._settings[SOURCE_ALIAS]
        headers = cross(record.headers, source, self._settings[TARGET_ALIAS])
        left_s = seconds_left(record)
        if headers is None or left_s == 0:
            return None
        if not any(name == ID for name, _ in headers):
            headers += ((ID, f"{source}:{record.position}"), (TIME, str(record.timestamp_ms)))
        topic = self._map(record.topic)
        if topic.startswith("$"):
            raise DataError(f"{topic[:100]!r} is reserved: topics that begin with $ belong to their cluster")
        return OutgoingMessage(
            topic,
            raw(record.value),
            qos=record.qos,
            retain=record.retain,
            properties=headers,
            content_type=record.content_type,
            response_topic=record.response_topic,
            correlation_data=record.correlation_data,
            message_expiry=left_s,
        )

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close(timeout=_RETRY_S)
