"""Gateways: processes of their own that take connections for a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Attendance:
    """The answer to a gateway's heartbeat. Orders are repeated until they are carried out."""

    orders: list[tuple[bytes, bool]]  # clients whose connection is to be closed; True: they have another one
    others: dict[str, int]  # figures of the other gateways, added up
    groups: list[bytes]  # shared subscriptions with messages that were given back


class GatewayStore(Protocol):
    """Registration of gateways, and which gateway has which client."""

    async def join_gateway(
        self, gateway: bytes, held: Sequence[tuple[bytes, bytes]] | None, more: bool = False
    ) -> float:
        """Register a gateway under a name that is never used again. Returns its lease in seconds: without a heartbeat
        in this time it counts as dead. A gateway that lost the store and joins again passes as `held` the clients that
        it has connections of, with their proven users; with `more`, another call brings more of them. Raises
        `GatewayEnded` and other `StoreError`s."""

    async def heartbeat(self, gateway: bytes, figures: Mapping[str, int]) -> Attendance:
        """Renew the lease and report figures. Returns when there are orders, or after a part of the lease. Raises
        `GatewayEnded`: the gateway has to begin anew."""

    async def leave_gateway(self, gateway: bytes) -> None:
        """End a gateway that has no connections any more. Returns when other gateways may have its clients."""

    async def claim_client(self, gateway: bytes, client_id: bytes, user: bytes) -> None:
        """Give a client to this gateway. Another gateway that has it closes its connection, and records the end of that
        connection, before this returns. Raises `HeldByAnother` for the client of another proven `user`, and
        `GatewayEnded`."""

    async def release_clients(self, gateway: bytes, clients: Sequence[bytes]) -> None:
        """Give clients back: the gateway has no connections of them, and all its records about them are committed."""
