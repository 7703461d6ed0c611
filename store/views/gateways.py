"""The gateways view: separate gateway processes of the store. Each run of a gateway has a name of its own."""

from itertools import islice
from typing import Final

from store.control import GatewayJoined, GatewayLeft
from store.views.database.state import State

_GATEWAYS: Final = b"G"


class Gateways:
    """Gateways that have joined and not left."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def joined(self, gateway: bytes, _: GatewayJoined) -> None:
        self._state.put(_GATEWAYS, gateway, b"")

    def left(self, gateway: bytes, _: GatewayLeft) -> None:
        self._state.delete(_GATEWAYS, gateway)

    def has(self, gateway: bytes) -> bool:
        return self._state.get(_GATEWAYS, gateway) is not None

    def page(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` gateways in order of their names, from after `after` on."""
        return [gateway for gateway, _ in islice(self._state.scan(_GATEWAYS, after=after), limit)]
