"""`sluice-sink`: messages go to another cluster of Sluice. One at each of two sites makes both active.

The user properties of a copy say where its message was published: `sluice-id` (`ALIAS:POSITION`), `sluice-time` (when
it was stored there, in milliseconds since 1970), and `sluice-cluster`, the clusters that it has been at.
"""

import asyncio
from collections.abc import Mapping, Sequence
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
from connect.connectors.sluice.group_positions import GroupPositions
from connect.regular_expressions import problem_of

ID: Final = "sluice-id"
TIME: Final = "sluice-time"
_SYNC: Final = "sync.group.offsets.enabled"
_REVERSE: Final = "reverse.connector"
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
        Setting(_SYNC, "Whether positions of consumer groups are copied, too.", SettingType.BOOLEAN, default=False),
        Setting("sync.group.offsets.interval.seconds", "How often.", SettingType.INT, 60, least=1),
        Setting("groups", "Regular expressions of the groups' names.", SettingType.LIST, [".*"],
                check=problem_of),
        Setting("groups.exclude", "Those of groups that are left out.", SettingType.LIST, ["connect-.*"],
                check=problem_of),
        Setting(_REVERSE, "The connector of the other cluster that copies back to this one, if there is one."),
        MAPPING,
        *TLS,
    )  # fmt: skip

    def check(self, settings: Settings) -> Mapping[str, str]:
        if settings[_SYNC] and settings["topic.mapping"]:
            return {_SYNC: "positions of groups are copied only if topics keep their names: without topic.mapping"}
        return {}

    def task(self) -> SinkTask:
        return SluiceSinkTask()


class SluiceSinkTask(SinkTask):
    """Sends each batch in one call."""

    _client: Client | None = None
    _keeping: asyncio.Task[None] | None = None  # positions of groups
    _keeps_one_way = False  # positions of groups, and the other cluster is said to copy nothing back

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
        if settings[_SYNC]:
            self._keeps_one_way = not settings[_REVERSE]
            if context.task == 0:
                await self._keep_positions(self._client)

    async def _keep_positions(self, target: Client) -> None:
        settings, context = self._settings, self._context
        positions = GroupPositions(
            context.client,
            target,
            f"sync/{settings[SOURCE_ALIAS]}/{context.connector}",
            context.topics,
            groups=settings["groups"],
            excluded=settings["groups.exclude"],
            reverse=settings[_REVERSE],
        )
        try:
            await positions.round()
        except (InvalidArgument, NotAllowed, Untrusted) as error:
            raise ConnectError(f"positions of groups cannot be copied to {self._where}: {error}") from error
        except SluiceError as error:
            raise RetriableError(f"positions of groups cannot be copied to {self._where} now: {error}") from error
        self._keeping = asyncio.create_task(positions.keep(settings["sync.group.offsets.interval.seconds"]))

    async def put(self, records: Sequence[SinkRecord]) -> None:
        if self._keeping is not None and self._keeping.done():
            self._keeping.result()  # raises
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
        if headers is None and self._keeps_one_way:
            raise ConnectError(f"messages come back from {self._settings[TARGET_ALIAS]}: name their {_REVERSE}")
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
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._client is not None:
            await self._client.close(timeout=_RETRY_S)
