"""Whom a connection asks: who serves what it cannot answer on the spot, and who holds it and watches its clock."""

from typing import TYPE_CHECKING, Protocol

from gateway.mqtt.packets import Auth, Connect, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from gateway.connection.connection import Connection


class RequestCallbacks(Protocol):
    """Who serves what a connection cannot answer on the spot."""

    def connect(self, connection: "Connection", packet: Connect) -> None: ...

    def subscribe(self, connection: "Connection", packet: Subscribe) -> None: ...

    def unsubscribe(self, connection: "Connection", packet: Unsubscribe) -> None: ...

    def auth(self, connection: "Connection", packet: Auth) -> None: ...

    def lost(self, connection: "Connection", clean: bool) -> None: ...

    def is_unreached(self, position: int) -> bool:
        """Whether a message of the commit that is being answered was addressed to nobody."""


class LifetimeCallbacks(Protocol):
    """Who holds the connections and watches their clocks."""

    def opened(self, connection: "Connection") -> None:
        """It has a session now, and perhaps a keep-alive."""

    def partial(self, connection: "Connection", size: int, is_new: bool) -> None:
        """So many bytes of a large packet have come, which has not ended; 0: it has. `is_new`: it is another one than
        before."""

    def gone(self, connection: "Connection") -> None:
        """The network connection has ended."""
