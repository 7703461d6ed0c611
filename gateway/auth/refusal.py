"""Why a CONNECT is not served."""

from gateway.mqtt.reasons import ReasonCode


class ClientRefused(Exception):
    """CONNECT cannot be served; the reason goes into CONNACK."""

    def __init__(self, reason: ReasonCode, text: str, server_reference: bytes = b"") -> None:
        super().__init__(text)
        self.reason = reason
        self.server_reference = server_reference  # where the client is served instead


class ClientGone(Exception):
    """The connection has ended: nobody waits for an answer."""
