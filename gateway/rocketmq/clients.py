"""The connected RocketMQ clients: their Telemetry streams, their settings and their transaction checks.

A node checks an open transaction by asking the producer that sent the message. If that producer is not connected
anywhere, the node asks another producer of the same topic, as RocketMQ does.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gateway.config.services import GroupConfig
from gateway.rocketmq.access import ClientKey
from gateway.rocketmq.messages import StoredMessage
from gateway.rocketmq.names import group_name, parent_of_topic, resource_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import OK, RocketError
from gateway.rpc.access.visibility import CALLER
from matcher.names import parent_of
from store.api import HeldMessage, Redelivery, Store
from store.errors import StoreError

log = logging.getLogger(__name__)

_MAX_COMMANDS: Final = 256  # unread by one client; the store repeats checks that do not fit
_MAX_TOPICS: Final = 1_024  # remembered for one client
_BATCH: Final = 32  # messages that a push consumer requests at once
_POLL_S: Final = 20  # long polling time of a push consumer
GroupConfigs = Mapping[bytes, GroupConfig]  # by name
_CONSUMERS: Final = frozenset((pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER))


class TelemetryClient:
    """One client with a Telemetry stream."""

    __slots__ = ("caller", "commands", "ended", "fifo_group", "key", "topics")

    def __init__(self, key: ClientKey) -> None:
        """The client of this task's call."""
        self.key = key
        self.caller = CALLER.get()
        self.commands: asyncio.Queue[pb.TelemetryCommand | HeldMessage] = asyncio.Queue(_MAX_COMMANDS)
        self.topics: set[bytes] = set()  # parent topics that it publishes to
        self.fifo_group = b""  # the group that it consumes in order by its own settings; b"": none
        self.ended = asyncio.Event()

    def enqueue(self, command: pb.TelemetryCommand | HeldMessage) -> bool:
        """Queue a command, or a half message for a transaction check. Returns False if the queue is full."""
        try:
            self.commands.put_nowait(command)
        except asyncio.QueueFull:
            return False
        return True

    def remember_topic(self, parent: bytes) -> None:
        if len(self.topics) < _MAX_TOPICS:
            self.topics.add(parent)

    def may_check(self, topic: bytes) -> bool:
        """Whether the client may be asked about transactions of a topic."""
        return self.caller is None or (not self.caller.is_revoked and self.caller.may_publish(topic))


class TelemetryClients:
    """All clients of a node. A new stream of a client replaces the older one."""

    def __init__(self, store: Store, max_body: int, groups: GroupConfigs) -> None:
        self._store = store
        self._max_body = max_body
        self._groups = groups
        self._clients: dict[str, dict[bytes, TelemetryClient]] = {}  # by client id and user
        store.on_transaction_check(self._send_checks)

    def add(self, client_key: ClientKey) -> TelemetryClient:
        """Add a client that opened a stream. Call this in the task of the stream."""
        older = self._find(client_key)
        if older is not None:
            older.ended.set()
        client = self._clients.setdefault(client_key.client_id, {})[client_key.user] = TelemetryClient(client_key)
        return client

    def remove(self, client: TelemetryClient) -> bool:
        """Remove a client after its stream has ended. Returns False if the client has a newer stream."""
        client.ended.set()
        if self._find(client.key) is not client:
            return False
        by_user = self._clients[client.key.client_id]
        del by_user[client.key.user]
        if not by_user:
            del self._clients[client.key.client_id]
        return True

    def has(self, client_key: ClientKey) -> bool:
        """Whether the client has a stream."""
        client = self._find(client_key)
        return client is not None and not client.ended.is_set()

    def end(self, client_key: ClientKey) -> None:
        """End the stream of a client that terminates."""
        client = self._find(client_key)
        if client is not None:
            client.ended.set()

    def is_fifo(self, client_key: ClientKey, group: bytes) -> bool:
        """Whether a group gets the messages of a topic in order: by the configuration, or as this client says."""
        configured, client = self._groups.get(group), self._find(client_key)
        return (configured is not None and configured.fifo) or (client is not None and client.fifo_group == group)

    def remember_topic(self, client_key: ClientKey, parent: bytes) -> None:
        """Remember that a client publishes to a parent topic, for transaction checks."""
        client = self._find(client_key)
        if client is not None:
            client.remember_topic(parent)

    def stop(self) -> None:
        for client in list(self._all()):
            client.ended.set()

    def settings_for(self, client: TelemetryClient, reported: pb.Settings) -> pb.Settings:
        """The settings that a client has to use, from those that it reported. Raises `RocketError`."""
        settings = pb.Settings()
        settings.CopyFrom(reported)
        settings.metric.on = False
        if reported.WhichOneof("pub_sub") == "publishing":
            for topic in reported.publishing.topics:
                client.remember_topic(parent_of_topic(topic))
            settings.publishing.max_body_size = self._max_body
            settings.publishing.validate_message_type = True
            settings.backoff_policy.CopyFrom(_send_retry_policy())
        elif reported.client_type in _CONSUMERS:
            group = group_name(reported.subscription.group)
            client.fifo_group = group if reported.subscription.fifo else b""
            settings.subscription.fifo = self.is_fifo(client.key, group)
            settings.subscription.receive_batch_size = _BATCH
            settings.subscription.long_polling_timeout.FromSeconds(_POLL_S)
            settings.backoff_policy.CopyFrom(_redelivery_policy(self._store.redelivery))
        else:
            raise RocketError(
                pb.UNRECOGNIZED_CLIENT_TYPE, "the client type must be a producer or a push, simple or pull consumer"
            )
        return settings

    def _send_checks(self, halves: Sequence[HeldMessage]) -> list[int]:
        """Queue transaction checks. The store repeats those for which no client is connected. Returns the handles of
        half messages whose own publisher is asked."""
        asked: list[int] = []
        for half in halves:
            publisher = self._publisher_of(half)
            if publisher is not None:
                if publisher.enqueue(half):
                    asked.append(half.handle)
            elif half.is_orphan and (other := self._other_publisher(half)) is not None:
                other.enqueue(half)
        return asked

    def _publisher_of(self, half: HeldMessage) -> TelemetryClient | None:
        """The client that sent a half message."""
        clients = self._clients.get(half.publisher.decode(errors="replace"), {}).values()
        return next((client for client in clients if client.may_check(half.topic)), None)

    def _other_publisher(self, half: HeldMessage) -> TelemetryClient | None:
        """A client that publishes to the same parent topic."""
        parent = parent_of(half.topic)
        return next((each for each in self._all() if parent in each.topics and each.may_check(half.topic)), None)

    def _find(self, client_key: ClientKey) -> TelemetryClient | None:
        return self._clients.get(client_key.client_id, {}).get(client_key.user)

    def _all(self) -> Iterator[TelemetryClient]:
        for by_user in self._clients.values():
            yield from by_user.values()

    async def check_command(self, half: HeldMessage) -> pb.TelemetryCommand | None:
        """The transaction check of a half message, or None if the message cannot be read."""
        try:
            stored = StoredMessage(await self._store.message(half.handle), 0)
        except StoreError as error:
            log.warning("the message of an open transaction cannot be read: %s", error)
            return None
        message = stored.message(resource_of(parent_of(half.topic)))
        command = pb.RecoverOrphanedTransactionCommand(message=message, transaction_id=str(half.handle))
        return pb.TelemetryCommand(status=OK, recover_orphaned_transaction_command=command)


def _redelivery_policy(redelivery: Redelivery) -> pb.RetryPolicy:
    """How often and when the store delivers a message again after its consumer failed."""
    policy = pb.RetryPolicy(max_attempts=redelivery.max_deliveries)
    for delay_ms in redelivery.delays_ms:
        policy.customized_backoff.next.add().FromMilliseconds(delay_ms)
    return policy


def _send_retry_policy() -> pb.RetryPolicy:
    """How often and when a producer repeats a failed send."""
    policy = pb.RetryPolicy(max_attempts=3)
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromMilliseconds(1_000)
    policy.exponential_backoff.multiplier = 2
    return policy
