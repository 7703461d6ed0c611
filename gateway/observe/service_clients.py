"""The cloud services that call a node: who they are, what they call, and what they hold of which group.

A client is one that calls over one connection with one user. gRPC does not tell when a connection ends, so a client is
one for as long as a call of it is under way, and for some minutes after its last one. What its groups lease and settle
is counted for each batch, in the process that the client is connected to.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from time import time
from typing import Final, NamedTuple

import msgspec

from store.api import Receipts, Run
from store.recent_rate import RecentRate

MAX_CLIENTS: Final = 4096  # of a process; the oldest without a call is forgotten first
_LATELY_S: Final = 300.0  # after its last call, a client is forgotten
_MAX_LOOKED_AT: Final = 64  # clients, to find one without a call
_MAX_METHODS: Final = 64  # of a client; there are not more in all protocols together
_MAX_GROUPS: Final = 256  # of a client; likewise
_MAX_BATCHES: Final = 64  # of a group whose leases are known apart; older ones are joined
_MAX_TEXT: Final = 256  # characters of what a client says of itself
_RECENT: Final = 16  # batches that the handling time is about

# Metadata of calls. SDK: `cloud_sdk.transport.connection`. RocketMQ: `client/golang/metadata` and its like.
SDK_NAME: Final = "sluice-client-name-bin"
_SDK_VERSION: Final = "sluice-client-version"
_SDK_LANGUAGE: Final = "sluice-client-language"
ROCKETMQ_NAME: Final = "x-mq-client-id"
_ROCKETMQ_VERSION: Final = "x-mq-client-version"
_ROCKETMQ_LANGUAGE: Final = "x-mq-language"
_AGENT: Final = "user-agent"

SDK: Final = "sdk"
ROCKETMQ: Final = "rocketmq"
GRPC: Final = "grpc"
HTTP: Final = "http"
MQTT: Final = "mqtt"


class GroupFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a member does in a group, since it is there."""

    group: str
    member: str  # its name in the log; "": none
    held: int  # messages that it has leased, and not settled
    received: int = 0
    acknowledged: int = 0
    failed: int = 0
    handling_ms: float = 0.0  # from a lease to its acknowledgement, lately


class ServiceFacts(msgspec.Struct, frozen=True, array_like=True):
    """A client, as the process knows it that it is connected to."""

    id: str  # unique among all processes
    kind: str  # `SDK`, `ROCKETMQ`, `GRPC`, `HTTP` or `MQTT`
    name: str  # that it gives itself: the publisher of what it sends; "": none
    user: str  # "": none
    address: str
    language: str  # "": unknown
    version: str  # of its library; "": unknown
    since_ms: int  # its first call
    last_ms: int = 0  # its last call began or ended; 0: it has a call under way, or is a device
    under_way: int = 0  # calls
    calls: dict[str, int] = {}  # by method
    sent: int = 0  # messages
    received: int = 0  # messages
    sent_rate: float = 0.0  # a second, lately
    received_rate: float = 0.0
    groups: list[GroupFacts] = []


class ServiceQuery(msgspec.Struct, frozen=True, array_like=True):
    """Which clients are asked for. Conditions that are empty hold for all."""

    after: str = ""  # only those behind this one, in the order of their ids
    limit: int = 1000
    id: str = ""
    group: str = ""  # members of this group, and only what they do there
    user: str = ""
    names: tuple[str, ...] = ()  # only clients that the log knows by one of these names


class _Batch:
    """Messages of a group that were leased together."""

    __slots__ = ("count", "leased_at", "until")

    def __init__(self, count: int, leased_at: float, until: float) -> None:
        self.count = count  # that are not settled
        self.leased_at = leased_at  # Unix time, seconds
        self.until = until  # the end of the leases


class _GroupUse:
    """What a client does in one group. Which message is settled is not looked at: the oldest batch counts first."""

    __slots__ = ("acknowledged", "batches", "failed", "handled", "handling_ms", "member", "received")

    def __init__(self) -> None:
        self.member = b""
        self.received = 0
        self.acknowledged = 0
        self.failed = 0
        self.handled = 0  # batches that `handling_ms` has seen
        self.handling_ms = 0.0
        self.batches: deque[_Batch] = deque()

    def leased(self, count: int, lease_s: float, now: float) -> None:
        self.received += count
        self._end_leases(now)
        if len(self.batches) >= _MAX_BATCHES:
            newest = self.batches[-1]
            newest.count += count
            newest.until = max(newest.until, now + lease_s)
        else:
            self.batches.append(_Batch(count, now, now + lease_s))

    def extended(self, until: float) -> None:
        for batch in self.batches:
            batch.until = max(batch.until, until)

    def settled(self, done: int, failed: int, returned: int, now: float) -> None:
        self.acknowledged += done
        self.failed += failed
        if done and self.batches:
            self.handled = min(self.handled + 1, _RECENT)
            taken_ms = max(now - self.batches[0].leased_at, 0.0) * 1000
            self.handling_ms += (taken_ms - self.handling_ms) / self.handled
        left = done + failed + returned
        while left and self.batches:
            oldest = self.batches[0]
            part = min(left, oldest.count)
            oldest.count -= part
            left -= part
            if not oldest.count:
                self.batches.popleft()

    def facts(self, group: bytes, now: float) -> GroupFacts:
        self._end_leases(now)
        return GroupFacts(
            group.decode(errors="replace"),
            self.member.decode(errors="replace"),
            sum(batch.count for batch in self.batches),
            self.received,
            self.acknowledged,
            self.failed,
            self.handling_ms,
        )

    def _end_leases(self, now: float) -> None:
        while self.batches and self.batches[0].until <= now:
            self.batches.popleft()


class _Key(NamedTuple):
    address: str
    user: str
    name: str


class ServiceClient:
    """A client of this process."""

    __slots__ = (
        "_calls",
        "_groups",
        "_key",
        "_kind",
        "_language",
        "_version",
        "id",
        "last",
        "received",
        "received_rate",
        "sent",
        "sent_rate",
        "since",
        "under_way",
    )

    def __init__(self, key: _Key, kind: str, language: str, version: str) -> None:
        self.id = secrets.token_hex(6)
        self._key = key
        self._kind = kind
        self._language = language
        self._version = version
        self.since = self.last = time()
        self.under_way = 0
        self._calls: dict[str, int] = {}
        self._groups: dict[bytes, _GroupUse] = {}
        self.sent = 0
        self.received = 0
        self.sent_rate = RecentRate()
        self.received_rate = RecentRate()

    def called(self, method: str) -> None:
        """A call begins. `call_ended` has to follow."""
        self.last = time()
        self.under_way += 1
        if method in self._calls or len(self._calls) < _MAX_METHODS:
            self._calls[method] = self._calls.get(method, 0) + 1

    def call_ended(self, _: object = None) -> None:
        self.last = time()
        self.under_way -= 1

    def published(self, count: int) -> None:
        """It sent messages, which are stored."""
        self.sent += count
        self.sent_rate.add(count, int(time() * 1000))

    def read(self, count: int) -> None:
        """It is sent messages."""
        self.received += count
        self.received_rate.add(count, int(time() * 1000))

    def leased(self, group: bytes, member: bytes, runs: Iterable[Run], lease_ms: int) -> None:
        """It is sent messages of a group."""
        count = sum([run.count for run in runs])
        use = self._use(group)
        if use is not None:
            use.member = member
            if count:
                use.leased(count, lease_ms / 1000, time())
        if count:
            self.read(count)

    def settled(
        self, group: bytes, done: Iterable[Receipts], failed: Iterable[Receipts], returned: Iterable[Receipts]
    ) -> None:
        """It is done with messages of a group, could not handle them, or gave them back."""
        use = self._use(group)
        if use is not None:
            finished, failures = sum([each.count for each in done]), sum([each.count for each in failed])
            use.settled(finished, failures, sum([each.count for each in returned]), time())

    def extended(self, group: bytes, lease_ms: int) -> None:
        """Leases of messages of a group were made longer: none of those that it has ends sooner, as far as known."""
        use = self._groups.get(group)
        if use is not None:
            use.extended(time() + lease_ms / 1000)

    def joined(self, group: bytes) -> None:
        """It reads for a group, without leases."""
        self._use(group)

    def matches(self, query: ServiceQuery) -> bool:
        return (
            self.id > query.after
            and (not query.id or self.id == query.id)
            and (not query.user or self._key.user == query.user)
            and (not query.names or not self._names().isdisjoint(query.names))
            and (not query.group or query.group.encode() in self._groups)
        )

    def facts(self, group: str = "") -> ServiceFacts:
        """group: the only one that is of interest; "": all are."""
        now = time()
        now_ms = int(now * 1000)
        groups = [(name, use) for name, use in self._groups.items() if not group or name == group.encode()]
        return ServiceFacts(
            self.id,
            self._kind,
            self._key.name,
            self._key.user,
            self._key.address,
            self._language,
            self._version,
            int(self.since * 1000),
            0 if self.under_way else int(self.last * 1000),
            self.under_way,
            dict(self._calls),
            self.sent,
            self.received,
            self.sent_rate.per_second(now_ms),
            self.received_rate.per_second(now_ms),
            [use.facts(name, now) for name, use in groups],
        )

    def _names(self) -> set[str]:
        """The names under which the log has what it does."""
        return {self._key.name, *[use.member.decode(errors="replace") for use in self._groups.values()]}

    def _use(self, group: bytes) -> _GroupUse | None:
        use = self._groups.get(group)
        if use is None and len(self._groups) < _MAX_GROUPS:
            use = self._groups[group] = _GroupUse()
        return use


class ServiceClients:
    """The clients of a process."""

    def __init__(self) -> None:
        self._clients: dict[_Key, ServiceClient] = {}

    def of_call(self, address: str, user: str, metadata: Mapping[str, str | bytes]) -> ServiceClient:
        """The client that calls, by the metadata of gRPC."""
        name = metadata.get(SDK_NAME) or metadata.get(ROCKETMQ_NAME, "")
        key = _Key(address, user, _text(name))
        found = self._clients.get(key)
        return self._add(key, *_library(metadata)) if found is None else found

    def of_request(self, host: str, user: str) -> ServiceClient:
        """The client that sends requests over HTTP. host: without a port, since each request may have another one."""
        key = _Key(host, user, "")
        found = self._clients.get(key)
        return self._add(key, HTTP, "", "") if found is None else found

    def find(self, query: ServiceQuery) -> list[ServiceFacts]:
        """The clients that a query asks for, in the order of their ids."""
        oldest = time() - _LATELY_S
        self._clients = {key: each for key, each in self._clients.items() if each.under_way or each.last > oldest}
        found = sorted((each for each in self._clients.values() if each.matches(query)), key=lambda each: each.id)
        return [each.facts(query.group) for each in found[: query.limit]]

    def _add(self, key: _Key, kind: str, language: str, version: str) -> ServiceClient:
        if len(self._clients) >= MAX_CLIENTS:
            self._forget_one()
        client = self._clients[key] = ServiceClient(key, kind, language, version)
        return client

    def _forget_one(self) -> None:
        first = next(iter(self._clients))
        for number, (key, client) in enumerate(self._clients.items()):
            if not client.under_way or number >= _MAX_LOOKED_AT:
                first = key
                break
        del self._clients[first]


CLIENT: Final[ContextVar[ServiceClient | None]] = ContextVar("service client", default=None)  # of the call of this task


def _library(metadata: Mapping[str, str | bytes]) -> tuple[str, str, str]:
    """Kind, language and version of a client's library."""
    if SDK_NAME in metadata:
        return SDK, _text(metadata.get(_SDK_LANGUAGE, "")), _text(metadata.get(_SDK_VERSION, ""))
    if ROCKETMQ_NAME in metadata:
        return ROCKETMQ, _text(metadata.get(_ROCKETMQ_LANGUAGE, "")), _text(metadata.get(_ROCKETMQ_VERSION, ""))
    return GRPC, "", _text(metadata.get(_AGENT, "")).partition(" ")[0]


def _text(value: str | bytes) -> str:
    return (value if isinstance(value, str) else value.decode(errors="replace"))[:_MAX_TEXT]
