"""What only the process that has a client's connection knows of it."""

import msgspec

from gateway.connection.connection import Connection
from gateway.session.session import Session


class ConnectionFacts(msgspec.Struct, frozen=True, array_like=True):
    """The connection of one client."""

    user: bytes  # b"": none
    address: str
    version: int  # of MQTT: 4 (3.1.1) or 5
    is_clean_start: bool
    keep_alive_s: int
    connected_ms: int  # since then
    in_flight: int  # messages that were sent, and not acknowledged
    queued_bytes: int  # that wait for the client's socket
    subscriptions: int
    is_paced: bool  # not read until a publish rate allows what it sent


def facts_of(session: Session, connection: Connection) -> ConnectionFacts:
    identity = connection.identity
    return ConnectionFacts(
        b"" if identity is None else identity.user_name,
        connection.peer(),
        connection.version,
        connection.is_clean_start,
        connection.keep_alive,
        int(connection.opened_at * 1000),
        session.exchanges.in_window,
        connection.queued_bytes(),
        len(session.subscriptions.values()) + len(session.shares),
        connection.rate_limited,
    )
