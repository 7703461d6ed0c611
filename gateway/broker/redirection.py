"""Where clients go that this node does not serve (MQTT 5.0, section 4.11)."""

from collections.abc import Callable, Sequence

from gateway.auth.refusal import ClientRefused
from gateway.config.mqtt import MqttConfig
from gateway.mqtt.reasons import ReasonCode
from gateway.net.weighted import Weighted, one_of


class Redirection:
    """The Server Reference for clients, and whether a CONNECT is refused with it."""

    def __init__(self, config: MqttConfig, others: Callable[[], Sequence[Weighted]]) -> None:
        """others: the addresses of other nodes that serve the same sessions."""
        self._config = config
        self._others = others
        self.why = ""  # this node serves no clients at the moment; "": it does

    def reference(self) -> bytes:
        """Another server for one client; b"": none is known."""
        return (one_of(self._others()) or self._config.server_reference).encode()

    def check(self) -> None:
        """Raise ClientRefused if this node serves no clients."""
        redirect = self._config.redirect
        if redirect != "stopping":
            reason = ReasonCode.SERVER_MOVED if redirect == "moved" else ReasonCode.USE_ANOTHER_SERVER
            raise ClientRefused(reason, "this node serves no clients", self._config.server_reference.encode())
        if self.why:
            raise ClientRefused(ReasonCode.USE_ANOTHER_SERVER, self.why, self.reference())
