"""Gateways: processes of their own that take connections for a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Attendance:
    """What a gateway is told. Orders come again until they are carried out."""

    orders: list[tuple[bytes, bool]]  # clients whose connection is to be closed; True: they have another one
    others: dict[str, int]  # figures of the other gateways, added up
    groups: list[bytes]  # shared subscriptions of which messages came back: they are to be had again


class GatewayStore(Protocol):
    """Which gateways there are, and which clients each of them has."""

    async def gateways(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` gateways that have joined and not left, sorted, behind `after`."""

    async def join(self, gateway: bytes, held: Sequence[tuple[bytes, bytes]] | None, more: bool = False) -> float:
        """Have a process of its own be a gateway of this store, under a name that nobody else ever has. Returns the
        lease in seconds: so long it is there without attending. `held`: it joined before, and lost the store; these are
        the clients, with their proven users, that it has connections of, and `more` of them follow with another call.
        Raises `GatewayEnded` and other `StoreError`s."""

    async def attend(self, gateway: bytes, figures: Mapping[str, int]) -> Attendance:
        """The gateway is there, and counts this. Returns when something is asked of it, or after a part of the lease.
        Raises `GatewayEnded`: it has to begin anew."""

    async def leave(self, gateway: bytes) -> None:
        """The gateway has no connections any more. Returns when others may have all that it had."""

    async def hold(self, gateway: bytes, client_id: bytes, user: bytes) -> None:
        """Have a client be the gateway's alone. Whoever else has it closes its connection, and records the end of that,
        before this returns. Raises `HeldByAnother` for the client of another proven `user`, and `GatewayEnded`."""

    async def free(self, gateway: bytes, clients: Sequence[bytes]) -> None:
        """The gateway has no connections of these any more, and all that it had to append about them is committed."""
