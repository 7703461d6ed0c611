"""The clients of RocketMQ that are connected: their Telemetry streams, the settings they get, and what they are asked.

A node asks a producer what became of a transaction that it left open: the one that sent the message if it is there,
else another one that sends to the same topic, as RocketMQ does.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.rocketmq.access import ClientKey
from gateway.rocketmq.messages import StoredMessage
from gateway.rocketmq.names import group_name, parent_of_topic, resource_of
from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import OK, RocketError
from gateway.rpc.visibility import CALLER
from matcher.names import parent_of
from store.api import HeldMessage, Store
from store.config import StoreConfig
from store.errors import StoreError

log = logging.getLogger(__name__)

_MAX_COMMANDS: Final = 256  # that wait for a client to read them; it is asked again later
_MAX_TOPICS: Final = 1_024  # of one client
_BATCH: Final = 32  # messages that a push consumer asks for at once
_POLL_S: Final = 20  # that it waits for them
_CONSUMERS: Final = frozenset((pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER))


class TelemetryClient:
    """One client with a Telemetry stream."""

    __slots__ = ("caller", "commands", "ended", "topics", "who")

    def __init__(self, who: ClientKey) -> None:
        """Of who makes the call of this task."""
        self.who = who
        self.caller = CALLER.get()
        self.commands: asyncio.Queue[pb.TelemetryCommand | HeldMessage] = asyncio.Queue(_MAX_COMMANDS)
        self.topics: set[bytes] = set()  # parent topics that it sends to
        self.ended = asyncio.Event()

    def tell(self, command: pb.TelemetryCommand | HeldMessage) -> bool:
        """Whether there was room for the command, or for the message whose transaction it is to be asked about."""
        try:
            self.commands.put_nowait(command)
        except asyncio.QueueFull:
            return False
        return True

    def may_hear_of(self, topic: bytes) -> bool:
        """Whether it may be asked about the transaction of a message there."""
        return self.caller is None or (not self.caller.is_revoked and self.caller.may_publish(topic))


class TelemetryClients:
    """Those of a node. Of two streams of one client the later counts."""

    def __init__(self, store: Store, retries: "Retries", max_body: int, fifo_groups: frozenset[bytes]) -> None:
        self._store = store
        self._retries = retries
        self._max_body = max_body
        self._fifo_groups = fifo_groups
        self._clients: dict[str, dict[bytes, TelemetryClient]] = {}  # by client id and user
        store.on_transaction_check(self._ask)

    def add(self, who: ClientKey) -> TelemetryClient:
        """One that opened a stream, in the task of that."""
        older = self._find(who)
        if older is not None:
            older.ended.set()
        client = self._clients.setdefault(who.client_id, {})[who.user] = TelemetryClient(who)
        return client

    def remove(self, client: TelemetryClient) -> bool:
        """Whether the client has no other stream by now."""
        client.ended.set()
        if self._find(client.who) is not client:
            return False
        of_name = self._clients[client.who.client_id]
        del of_name[client.who.user]
        if not of_name:
            del self._clients[client.who.client_id]
        return True

    def has(self, who: ClientKey) -> bool:
        """Whether the client has a stream."""
        client = self._find(who)
        return client is not None and not client.ended.is_set()

    def end(self, who: ClientKey) -> None:
        """The client says that it goes."""
        client = self._find(who)
        if client is not None:
            client.ended.set()

    def sends_to(self, who: ClientKey, parent: bytes) -> None:
        """Remember whom to ask about transactions."""
        client = self._find(who)
        if client is not None and len(client.topics) < _MAX_TOPICS:
            client.topics.add(parent)

    def stop(self) -> None:
        for client in list(self._all()):
            client.ended.set()

    def settle(self, client: TelemetryClient, asked: pb.Settings) -> pb.Settings:
        """The settings that a client is to have, in answer to those that it tells. Raises `RocketError`."""
        settings = pb.Settings()
        settings.CopyFrom(asked)
        settings.metric.on = False
        if asked.WhichOneof("pub_sub") == "publishing":
            for topic in asked.publishing.topics:
                parent = parent_of_topic(topic)
                if len(client.topics) < _MAX_TOPICS:
                    client.topics.add(parent)
            settings.publishing.max_body_size = self._max_body
            settings.publishing.validate_message_type = True
            settings.backoff_policy.CopyFrom(_resends())
        elif asked.client_type in _CONSUMERS:
            settings.subscription.fifo = group_name(asked.subscription.group) in self._fifo_groups
            settings.subscription.receive_batch_size = _BATCH
            settings.subscription.long_polling_timeout.FromSeconds(_POLL_S)
            settings.backoff_policy.CopyFrom(self._retries.policy())
        else:
            raise RocketError(
                pb.UNRECOGNIZED_CLIENT_TYPE, "a client is a producer or a push, simple or pull consumer here"
            )
        return settings

    def _ask(self, halves: Sequence[HeldMessage]) -> None:
        """Have publishers asked what became of these transactions. Whom nobody can ask is asked again later."""
        for half in halves:
            client = self._whom(half)
            if client is not None:
                client.tell(half)

    def _whom(self, half: HeldMessage) -> TelemetryClient | None:
        """The client that sent it, or another one that sends to the same topic."""
        for client in self._clients.get(half.publisher.decode(errors="replace"), {}).values():
            if client.may_hear_of(half.topic):
                return client
        parent = parent_of(half.topic)
        return next((each for each in self._all() if parent in each.topics and each.may_hear_of(half.topic)), None)

    def _find(self, who: ClientKey) -> TelemetryClient | None:
        return self._clients.get(who.client_id, {}).get(who.user)

    def _all(self) -> Iterator[TelemetryClient]:
        for of_name in self._clients.values():
            yield from of_name.values()

    async def question(self, half: HeldMessage) -> pb.TelemetryCommand | None:
        """What a client is asked about a transaction, if that can still be asked."""
        try:
            stored = StoredMessage(await self._store.message(half.handle), 0)
        except StoreError as error:
            log.warning("the message of an open transaction cannot be read: %s", error)
            return None
        message = stored.message(resource_of(parent_of(half.topic)))
        command = pb.RecoverOrphanedTransactionCommand(message=message, transaction_id=str(half.handle))
        return pb.TelemetryCommand(status=OK, recover_orphaned_transaction_command=command)


class Retries:
    """How often, and after which times, a message comes again whose consumer failed: as the store does it by itself."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config

    def policy(self) -> pb.RetryPolicy:
        policy = pb.RetryPolicy(max_attempts=self._config.max_deliveries)
        for delay in self._config.retry_delays_s:
            policy.customized_backoff.next.add().FromMilliseconds(int(delay * 1000))
        return policy


def _resends() -> pb.RetryPolicy:
    """How a producer sends again what was not taken."""
    policy = pb.RetryPolicy(max_attempts=3)
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromMilliseconds(1_000)
    policy.exponential_backoff.multiplier = 2
    return policy
