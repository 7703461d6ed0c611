"""The AUTH packets of one authentication: asks the client, and waits for what it says (MQTT 5.0 section 4.12)."""

import asyncio
from typing import TYPE_CHECKING

from gateway.auth.refusal import ClientGone, Refused
from gateway.mqtt.encode import auth
from gateway.mqtt.packets import Auth
from gateway.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from gateway.connection.connection import Connection


class EnhancedAuthentication:
    """From CONNECT, or from an AUTH that begins anew, to its end."""

    __slots__ = ("_awaited", "_connection", "_deadline", "_loop", "method")

    def __init__(self, connection: "Connection", method: bytes, seconds: float) -> None:
        """seconds: that the client has for all of it."""
        self.method = method
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._awaited: asyncio.Future[bytes] | None = None

    async def ask(self, data: bytes | None) -> bytes:
        """Send AUTH 0x18 (MQTT-4.12.0-2) and return the data of the client's. Raises Refused when that comes too late,
        ClientGone when it does not come."""
        connection = self._connection
        packet = auth(ReasonCode.CONTINUE_AUTHENTICATION, self.method, data)
        limit = connection.maximum_packet_size
        if limit and len(packet) > limit:
            raise Refused(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "the maximum packet size is too small to serve")
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
            raise Refused(ReasonCode.NOT_AUTHORIZED, "the authentication took too long") from None
        finally:
            self._awaited = None
            if is_connecting:
                connection.connecting = True
                connection.pause_reading()

    def answer(self, packet: Auth) -> bool:
        """AUTH from the client. False: it was not asked for."""
        awaited = self._awaited
        if awaited is None or awaited.done() or packet.reason != ReasonCode.CONTINUE_AUTHENTICATION:
            return False
        awaited.set_result(packet.authentication_data or b"")
        return True

    def gone(self) -> None:
        """The connection has ended."""
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(ClientGone())
