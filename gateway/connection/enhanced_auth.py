"""The AUTH packets of one authentication (MQTT 5.0 section 4.12)."""

import asyncio

from gateway.auth.refusal import ClientGone, ClientRefused
from gateway.mqtt.encode import auth
from gateway.mqtt.packets import Auth
from gateway.mqtt.reasons import ReasonCode
from gateway.net.flow_control import FlowControl


class EnhancedAuthentication:
    """One authentication, from CONNECT or from the AUTH that starts a re-authentication to its end."""

    __slots__ = ("_awaited", "_connection", "_deadline", "_loop", "method", "user_name")

    def __init__(self, connection: FlowControl, method: bytes, seconds: float) -> None:
        """seconds: time limit for the whole exchange."""
        self.method = method
        self.user_name = b""  # that the client claims
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._awaited: asyncio.Future[bytes] | None = None

    async def ask(self, data: bytes | None) -> bytes:
        """Send AUTH 0x18 (MQTT-4.12.0-2) and return the authentication data of the client's answer.

        Raises ClientRefused when the answer comes too late, ClientGone when the connection ends before it.
        """
        connection = self._connection
        packet = auth(ReasonCode.CONTINUE_AUTHENTICATION, self.method, data)
        limit = connection.maximum_packet_size
        if limit and len(packet) > limit:
            raise ClientRefused(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the maximum packet size is too small")
        if connection.is_closed():
            raise ClientGone
        self._awaited = self._loop.create_future()
        connection.send(packet)
        is_connecting = connection.connecting
        if is_connecting:
            connection.connecting = False
            connection.resume_reading()
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._awaited
        except TimeoutError:
            raise ClientRefused(ReasonCode.NOT_AUTHORIZED, "the authentication took too long") from None
        finally:
            self._awaited = None
            if is_connecting:
                connection.connecting = True
                connection.pause_reading()

    def answer(self, packet: Auth) -> bool:
        """Pass on an AUTH packet of the client. Returns False when none was asked for."""
        awaited = self._awaited
        if awaited is None or awaited.done() or packet.reason != ReasonCode.CONTINUE_AUTHENTICATION:
            return False
        awaited.set_result(packet.authentication_data or b"")
        return True

    def connection_lost(self) -> None:
        """End the wait for an answer: the connection has ended."""
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(ClientGone())
