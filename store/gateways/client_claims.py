"""Which gateway has which client: numbered claims.

A gateway claims a client before it serves its CONNECT, under a number that only grows within that gateway. Whatever is
said about the client later names the number. A message that arrives late, or twice, has an old number and changes
nothing. Rules of the file:

* A client has one claim. Another gateway's claim waits until the first one is released.
* A release of a number releases all older claims that the same gateway had of the client.
* An order to release a claim is repeated until the gateway releases that number or a newer one.
"""

import asyncio
from collections.abc import Callable, KeysView

Order = tuple[int, bool]  # the number of the claim to release; True: another connection takes the client over


class ClientClaim:
    """A client of a gateway."""

    __slots__ = ("gateway", "number", "user")

    def __init__(self, gateway: bytes, number: int, user: bytes) -> None:
        self.gateway = gateway  # b"": the store's own process, for a moment
        self.number = number
        self.user = user  # the proven user of the connection; b"" if there is none


class ClientClaims:
    """The claims of all clients. Live state of the store's process; everything happens on the loop.

    `on_order` is called with the name of a gateway that has to hear of an order."""

    def __init__(self, on_order: Callable[[bytes], None]) -> None:
        self._on_order = on_order
        self._claims: dict[bytes, ClientClaim] = {}  # by client
        self._orders: dict[bytes, dict[bytes, Order]] = {}  # by gateway, by client
        self._waiting: dict[bytes, dict[asyncio.Future[None], None]] = {}  # by client, in the order of their requests

    @property
    def clients(self) -> KeysView[bytes]:
        """The ids of all clients that are claimed."""
        return self._claims.keys()

    def get(self, client_id: bytes) -> ClientClaim | None:
        """The claim of a client."""
        return self._claims.get(client_id)

    def orders(self, gateway: bytes) -> list[tuple[bytes, int, bool]]:
        """Which claims a gateway has to release: client, number, whether another connection takes over."""
        return [(client_id, *order) for client_id, order in self._orders.get(gateway, {}).items()]

    def grant(self, client_id: bytes, claim: ClientClaim) -> None:
        """Give an unclaimed client to a gateway, or renew the claim of the gateway that has it."""
        current = self._claims.get(client_id)
        assert current is None or current.gateway == claim.gateway
        if current is not None and current.number > claim.number:
            return
        self._claims[client_id] = claim
        order = self._orders.get(claim.gateway, {}).pop(client_id, None)
        if current is not None and order is not None:
            self.order(client_id, claim, order[1])

    def order(self, client_id: bytes, claim: ClientClaim, is_taken_over: bool) -> None:
        """Tell the claim's gateway to close the client's connection and release the claim."""
        if claim.gateway:
            self._orders.setdefault(claim.gateway, {})[client_id] = claim.number, is_taken_over
            self._on_order(claim.gateway)

    def release(self, gateway: bytes, client_id: bytes, number: int) -> None:
        """A gateway has nothing left of its claims of the client up to this number."""
        orders = self._orders.get(gateway)
        if orders is not None and client_id in orders and orders[client_id][0] <= number:
            del orders[client_id]
        claim = self._claims.get(client_id)
        if claim is not None and claim.gateway == gateway and claim.number <= number:
            del self._claims[client_id]
            self._wake(client_id)

    def release_except(self, gateway: bytes, numbers: dict[bytes, int]) -> None:
        """A gateway has these claims, by client, and no older or other ones."""
        for client_id, claim in [item for item in self._claims.items() if item[1].gateway == gateway]:
            if numbers.get(client_id, -1) < claim.number:
                self.release(gateway, client_id, claim.number)

    def release_all(self, gateway: bytes) -> None:
        """The gateway has ended."""
        self.release_except(gateway, {})
        self._orders.pop(gateway, None)

    async def released(self, client_id: bytes, claim: ClientClaim, is_taken_over: bool) -> None:
        """Order the release of a claim, and wait until the client may be claimed again."""
        self.order(client_id, claim, is_taken_over)
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(client_id, {})
        waiting[released] = None
        try:
            await released
        finally:
            del waiting[released]
            if not waiting and self._waiting.get(client_id) is waiting:
                del self._waiting[client_id]

    def wake_all(self) -> None:
        """End all waits for a release."""
        for client_id in list(self._waiting):
            self._wake(client_id)

    def _wake(self, client_id: bytes) -> None:
        for released in list(self._waiting.get(client_id, ())):
            if not released.done():
                released.set_result(None)
