"""The remote calls of `store.api.Store`: their numbers, and the encoding of arguments and results.

Arguments are a MessagePack array, results are one value. The signatures of `Store` give the types of both.
"""

import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from store.api import (
    Attendance,
    Bounds,
    ChildPage,
    Chunk,
    Fetched,
    Found,
    GroupState,
    Handed,
    HeldPage,
    NamedClaim,
    PopRequest,
    PopResult,
    Receipts,
    Retained,
    Rule,
    SessionState,
    Store,
    StoredSubscription,
    StoredWill,
    TopicPage,
    User,
)

Result = TypeVar("Result")

encode: Final = msgspec.msgpack.Encoder().encode


class Method(Generic[Result]):
    """A method of `Store` that can be called remotely. `is_read`: it can be called twice without harm."""

    __slots__ = ("arguments", "is_read", "name", "number", "result")

    def __init__(self, name: str, *, is_read: bool = True) -> None:
        hints = typing.get_type_hints(getattr(Store, name))
        result = hints.pop("return")
        self.name = name
        self.is_read = is_read
        self.number = len(METHODS)
        self.arguments: msgspec.msgpack.Decoder[tuple[Any, ...]] = msgspec.msgpack.Decoder(
            tuple.__class_getitem__(tuple(hints.values()))
        )
        self.result: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(result)
        METHODS.append(self)


METHODS: Final[list[Method[Any]]] = []  # by number: append new ones at the end

BOUNDS: Final = Method[Bounds]("bounds")
FETCH: Final = Method[Fetched]("fetch")
READ: Final = Method[Chunk]("read")
POSITION_AT: Final = Method[int]("position_at")
RETENTION_FLOOR: Final = Method[int]("retention_floor")
OFFSET_AT: Final = Method[int]("offset_at")
BY_KEY: Final = Method[Found]("by_key")
MESSAGE: Final = Method[bytes]("message")
SESSION: Final = Method[SessionState | None]("session")
SUBSCRIPTIONS: Final = Method[dict[bytes, StoredSubscription]]("subscriptions")
SESSIONS: Final = Method[list[bytes]]("sessions")
SESSIONS_OF: Final = Method[tuple[list[bytes], bytes | None]]("sessions_of")
WILL: Final = Method[StoredWill | None]("will")
WILLS: Final = Method[list[StoredWill]]("wills")
WILLS_WAITING: Final = Method[list[tuple[bytes, int]]]("wills_waiting")
SESSIONS_OPEN: Final = Method[list[tuple[bytes, int, int, bytes]]]("sessions_open")
SESSIONS_EXPIRED: Final = Method[list[tuple[bytes, int]]]("sessions_expired")
RETAINED: Final = Method[list[Retained]]("retained")
GROUP_OFFSETS: Final = Method[dict[int, int]]("group_offsets")
POP: Final = Method[PopResult]("pop", is_read=False)
SETTLE: Final = Method[list[Receipts]]("settle", is_read=False)
BURY: Final = Method[list[Receipts]]("bury", is_read=False)
RELEASE_LEASES: Final = Method[None]("release_leases", is_read=False)
HAND_OVER: Final = Method[list[int]]("hand_over", is_read=False)
TRANSIENT_SHARES: Final = Method[list[tuple[bytes, list[bytes]]]]("transient_shares")
JOIN_GATEWAY: Final = Method[float]("join_gateway", is_read=False)
HEARTBEAT: Final = Method[Attendance]("heartbeat", is_read=False)
LEAVE_GATEWAY: Final = Method[None]("leave_gateway", is_read=False)
CLAIM_CLIENT: Final = Method[None]("claim_client", is_read=False)
RELEASE_CLIENTS: Final = Method[None]("release_clients", is_read=False)
RESET_GROUP: Final = Method[None]("reset_group", is_read=False)
REMOVE_GROUP: Final = Method[None]("remove_group", is_read=False)
GROUPS: Final = Method[list[GroupState]]("groups")
TIMERS: Final = Method[HeldPage]("timers")
RECALL: Final = Method[list[int]]("recall", is_read=False)
END_TRANSACTION: Final = Method[list[int]]("end_transaction", is_read=False)
TOPICS: Final = Method[TopicPage]("topics")
CHILDREN: Final = Method[ChildPage]("children")
USER: Final = Method[User | None]("user")
USERS: Final = Method[list[User]]("users")
RULES: Final = Method[list[Rule]]("rules")
RULES_OF_ALL: Final = Method[list[tuple[bytes, list[Rule]]]]("rules_of_all")
PRODUCED: Final = Method[tuple[int, int, int] | None]("produced")
SESSION_ROW: Final = Method[SessionState | None]("session_row")


class RemoteCalls:
    """The methods of `Store` as remote calls."""

    async def _ask(self, method: Method[Result], *arguments: object) -> Result:
        raise NotImplementedError

    async def _ask_pop(self, request: PopRequest) -> PopResult:
        """Pop. If the caller was cancelled meanwhile, the leases are returned."""
        raise NotImplementedError

    async def produced(self, producer: bytes) -> tuple[int, int, int] | None:
        return await self._ask(PRODUCED, producer)

    async def bounds(self, queue: bytes) -> Bounds:
        return await self._ask(BOUNDS, queue)

    async def fetch(self, queue: bytes, offset: int, max_records: int, max_bytes: int, without: int = 0) -> Fetched:
        return await self._ask(FETCH, queue, offset, max_records, max_bytes, without)

    async def read(self, position: int, max_bytes: int) -> Chunk:
        return await self._ask(READ, position, max_bytes)

    async def position_at(self, time_ms: int) -> int:
        return await self._ask(POSITION_AT, time_ms)

    async def retention_floor(self, parent: bytes) -> int:
        return await self._ask(RETENTION_FLOOR, parent)

    async def offset_at(self, queue: bytes, time_ms: int) -> int:
        return await self._ask(OFFSET_AT, queue, time_ms)

    async def by_key(self, parent: bytes, key: bytes, after: int | None, limit: int, max_bytes: int) -> Found:
        return await self._ask(BY_KEY, parent, key, after, limit, max_bytes)

    async def message(self, position: int) -> bytes:
        return await self._ask(MESSAGE, position)

    async def session(self, client_id: bytes) -> SessionState | None:
        return await self._ask(SESSION, client_id)

    async def session_row(self, client_id: bytes) -> SessionState | None:
        return await self._ask(SESSION_ROW, client_id)

    async def subscriptions(self, client_id: bytes, filters: Sequence[bytes]) -> dict[bytes, StoredSubscription]:
        return await self._ask(SUBSCRIPTIONS, client_id, filters)

    async def sessions(self, after: bytes | None, limit: int) -> list[bytes]:
        return await self._ask(SESSIONS, after, limit)

    async def sessions_of(self, user_name: bytes, after: bytes | None) -> tuple[list[bytes], bytes | None]:
        return await self._ask(SESSIONS_OF, user_name, after)

    async def will(self, client_id: bytes) -> StoredWill | None:
        return await self._ask(WILL, client_id)

    async def wills(self, after: bytes | None, limit: int) -> list[StoredWill]:
        return await self._ask(WILLS, after, limit)

    async def wills_waiting(self, limit: int) -> list[tuple[bytes, int]]:
        return await self._ask(WILLS_WAITING, limit)

    async def sessions_open(self, after: bytes | None, limit: int) -> list[tuple[bytes, int, int, bytes]]:
        return await self._ask(SESSIONS_OPEN, after, limit)

    async def sessions_expired(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        return await self._ask(SESSIONS_EXPIRED, now_ms, limit)

    async def retained(self, topic_filter: bytes, after: bytes | None, limit: int) -> list[Retained]:
        return await self._ask(RETAINED, topic_filter, after, limit)

    async def group_offsets(self, group: bytes, parent: bytes) -> dict[int, int]:
        return await self._ask(GROUP_OFFSETS, group, parent)

    async def pop(self, request: PopRequest) -> PopResult:
        return await self._ask_pop(request)

    async def settle(
        self,
        group: bytes,
        done: Sequence[Receipts],
        again: Sequence[tuple[Receipts, int | None]] = (),
        unsent: Sequence[tuple[Receipts, int]] = (),
        member: bytes = b"",
    ) -> list[Receipts]:
        return await self._ask(SETTLE, group, done, again, unsent, member)

    async def bury(self, group: bytes, receipts: Sequence[Receipts], member: bytes = b"") -> list[Receipts]:
        return await self._ask(BURY, group, receipts, member)

    async def release_leases(self, group: bytes, queue: bytes) -> None:
        return await self._ask(RELEASE_LEASES, group, queue)

    async def hand_over(self, group: bytes, handed: Sequence[Handed]) -> list[int]:
        return await self._ask(HAND_OVER, group, handed)

    async def transient_shares(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[bytes]]]:
        return await self._ask(TRANSIENT_SHARES, after, limit)

    async def join_gateway(self, gateway: bytes, claims: Sequence[NamedClaim] | None, more: bool = False) -> float:
        return await self._ask(JOIN_GATEWAY, gateway, claims, more)

    async def heartbeat(self, gateway: bytes, figures: Mapping[str, int]) -> Attendance:
        return await self._ask(HEARTBEAT, gateway, figures)

    async def leave_gateway(self, gateway: bytes) -> None:
        return await self._ask(LEAVE_GATEWAY, gateway)

    async def claim_client(self, gateway: bytes, client_id: bytes, number: int, user: bytes) -> None:
        return await self._ask(CLAIM_CLIENT, gateway, client_id, number, user)

    async def release_clients(self, gateway: bytes, claims: Sequence[tuple[bytes, int]]) -> None:
        return await self._ask(RELEASE_CLIENTS, gateway, claims)

    async def reset_group(self, group: bytes, offsets: Mapping[bytes, int]) -> None:
        return await self._ask(RESET_GROUP, group, offsets)

    async def remove_group(self, group: bytes) -> None:
        return await self._ask(REMOVE_GROUP, group)

    async def groups(self, after: bytes | None, limit: int) -> list[GroupState]:
        return await self._ask(GROUPS, after, limit)

    async def timers(self, after: bytes | None, limit: int) -> HeldPage:
        return await self._ask(TIMERS, after, limit)

    async def recall(self, handles: Sequence[int]) -> list[int]:
        return await self._ask(RECALL, handles)

    async def end_transaction(self, handles: Sequence[int], commit: bool) -> list[int]:
        return await self._ask(END_TRANSACTION, handles, commit)

    async def topics(self, prefix: bytes, after: bytes | None, limit: int) -> TopicPage:
        return await self._ask(TOPICS, prefix, after, limit)

    async def children(self, above: bytes, after: bytes | None, limit: int) -> ChildPage:
        return await self._ask(CHILDREN, above, after, limit)

    async def user(self, name: bytes) -> User | None:
        return await self._ask(USER, name)

    async def users(self, after: bytes | None, limit: int) -> list[User]:
        return await self._ask(USERS, after, limit)

    async def rules(self, name: bytes) -> list[Rule]:
        return await self._ask(RULES, name)

    async def rules_of_all(self, after: bytes | None, limit: int) -> list[tuple[bytes, list[Rule]]]:
        return await self._ask(RULES_OF_ALL, after, limit)
