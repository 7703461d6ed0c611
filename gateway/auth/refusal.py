"""Exceptions that end the authentication of a client."""

from gateway.mqtt.reasons import ReasonCode


class ClientRefused(Exception):
    """The client is not served. The reason goes into CONNACK."""

    def __init__(self, reason: ReasonCode, text: str, server_reference: bytes = b"") -> None:
        super().__init__(text)
        self.reason = reason
        self.server_reference = server_reference  # another server for the client


class ClientGone(Exception):
    """The connection has ended, so no answer is needed."""
