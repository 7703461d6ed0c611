"""Callbacks that a Connection needs: for requests that take time, and for its lifetime.

They are generic over the connection's class, so that this module does not import it.
"""

from typing import Protocol, TypeVar

from gateway.mqtt.packets import Auth, Connect, Subscribe, Unsubscribe
from store.api import Action

ConnectionT_contra = TypeVar("ConnectionT_contra", contravariant=True)


class UnreachedMessages(Protocol):
    """Knows which messages to an inbox reached no client."""

    def is_unreached(self, position: int) -> bool:
        """Whether the message at this position of the log, whose commit is under way, is addressed to nobody."""


class RequestCallbacks(UnreachedMessages, Protocol[ConnectionT_contra]):
    """Serves the requests that a connection cannot answer at once."""

    def connect(self, connection: ConnectionT_contra, packet: Connect) -> None: ...

    def subscribe(self, connection: ConnectionT_contra, packet: Subscribe) -> None: ...

    def unsubscribe(self, connection: ConnectionT_contra, packet: Unsubscribe) -> None: ...

    def denied(self, connection: ConnectionT_contra, action: Action, topic: bytes) -> None:
        """Rules deny a message to a topic, or a filter."""

    def allowed(self, connection: ConnectionT_contra, action: Action, topic: bytes) -> None:
        """Rules allow a filter."""

    def auth(self, connection: ConnectionT_contra, packet: Auth) -> None: ...

    def lost(self, connection: ConnectionT_contra, clean: bool) -> None:
        """The connection has ended. clean: by a DISCONNECT that drops the will (MQTT-3.14.4-3)."""


class LifetimeCallbacks(Protocol[ConnectionT_contra]):
    """Keeps the connections of a node and watches their timers."""

    def opened(self, connection: ConnectionT_contra) -> None:
        """The connection has a session, and perhaps a keep-alive."""

    def partial(self, connection: ConnectionT_contra, size: int, is_new: bool) -> None:
        """`size` bytes of a large packet have come, and its end has not. 0: the end has come.

        is_new: this is another packet than the one reported before.
        """

    def closed(self, connection: ConnectionT_contra) -> None:
        """The network connection has ended."""
