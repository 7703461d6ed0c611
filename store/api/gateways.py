"""Gateways: processes of their own that take connections for a store."""

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


class GatewayStore(Protocol):
    """Which gateways there are, and which clients each of them has."""

    async def join_gateway(self, gateway: bytes, claims: Sequence[NamedClaim] | None, more: bool = False) -> float:
        """Register a process as a gateway of this store, under a name that no other gateway ever has. Returns the lease
        in seconds: the gateway is ended when its heartbeats stop for that long. `claims`: the gateway joined before and
        lost the store; these are the claims that it was granted, and with `more` another call follows with others.
        Raises `GatewayEnded` and other `StoreError`s."""

    async def heartbeat(self, gateway: bytes, figures: Mapping[str, int]) -> Attendance:
        """Renew the gateway's lease and report its counters. Returns when there is news for it, or after a part of the
        lease. Raises `GatewayEnded`: the gateway has to join under another name."""

    async def leave_gateway(self, gateway: bytes) -> None:
        """End the gateway, which has closed all its connections. Returns when others may claim its clients."""

    async def claim_client(self, gateway: bytes, client_id: bytes, number: int, user: bytes) -> None:
        """Give the gateway a client, as its claim of this number. Numbers grow within a gateway; a claim may be
        repeated. A gateway that has the client is ordered to close its connection, and this returns when the last
        records of that are committed. Raises `GatewayEnded`, and `ClaimedByAnotherUser`
        for a client of another proven `user`."""

    async def release_clients(self, gateway: bytes, claims: Sequence[tuple[bytes, int]]) -> None:
        """Release claims (client id, number), and older ones of the same clients. The gateway has no connection of them
        any more, and all their records are committed."""
