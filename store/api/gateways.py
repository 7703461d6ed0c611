"""Gateways: separate processes that accept connections for a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NamedClaim = tuple[bytes, int, bytes]  # client id, number of the claim, proven user of its connection or b""


@dataclass(slots=True)
class Attendance:
    """What a gateway learns from one `heartbeat`. Orders are repeated until they are carried out."""

    orders: list[tuple[bytes, int, bool]]  # claims to release: client id, number; True: another connection takes over
    others: dict[str, int]  # the counters of the other gateways, added up
    groups: list[bytes]  # shared subscriptions whose messages were returned and can be popped again
    questions: list[tuple[int, bytes]]  # of the store's process: a number, and what only gateways understand; sent once


class GatewayStore(Protocol):
    """The gateways of a store, and the clients that each of them has."""

    async def join_gateway(self, gateway: bytes, claims: Sequence[NamedClaim] | None, more: bool = False) -> float:
        """Register a process as a gateway, under a name that is never used again.

        Returns the lease in seconds: the gateway is ended if there is no heartbeat for that long. claims: None for a
        new gateway. A gateway that joined before and lost the store passes the claims that it was granted; with `more`,
        another call follows with the next ones. Raises `GatewayEnded` and other `StoreError`s.
        """

    async def heartbeat(self, gateway: bytes, figures: Mapping[str, int]) -> Attendance:
        """Renew the gateway's lease and report its counters. Returns when there is news for the gateway, or after a
        part of the lease. Raises `GatewayEnded`; the gateway has to join under another name then."""

    async def leave_gateway(self, gateway: bytes) -> None:
        """End a gateway that has closed all its connections. Returns when other gateways may claim its clients."""

    async def claim_client(self, gateway: bytes, client_id: bytes, number: int, user: bytes) -> None:
        """Give a client to the gateway, with a claim of this number. Numbers grow within a gateway; a claim may be
        repeated.

        A gateway that has the client is ordered to close its connection. This returns when the last records of that
        connection are committed. Raises `GatewayEnded`, and `ClaimedByAnotherUser` if the client belongs to another
        proven `user`.
        """

    async def release_clients(self, gateway: bytes, claims: Sequence[tuple[bytes, int]]) -> None:
        """Release claims (client id, number) and all older claims of these clients. The gateway has no connection of
        these clients any more, and all records of them are committed."""

    async def answer_question(self, gateway: bytes, number: int, answer: bytes) -> None:
        """Answer a question of `Attendance`. One that nobody waits for any more is ignored. Raises `GatewayEnded`."""
