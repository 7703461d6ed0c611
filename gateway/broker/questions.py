"""Questions that the process of a store asks its gateways about their clients, and the answers, in MessagePack."""

from typing import Final

import msgspec

from gateway.broker.connection_facts import ConnectionFacts, facts_of
from gateway.broker.service_directory import services_here
from gateway.broker.sessions import Sessions
from gateway.connection.packet_trace import TraceLine
from gateway.observe.service_clients import ServiceClients, ServiceFacts, ServiceQuery


class _Question(msgspec.Struct, frozen=True, array_like=True):
    client_id: bytes
    trace: str = ""  # name of a trace that is read; "": the facts are asked for
    until_ms: int = 0
    services: ServiceQuery | None = None  # clients that are asked for in place of one


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway says about a client."""

    facts: ConnectionFacts | None = None  # None: it does not have the client
    lines: list[TraceLine] = []
    dropped: int = 0
    services: list[ServiceFacts] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_read_question: Final = msgspec.msgpack.Decoder(_Question).decode
_read_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def question(client_id: bytes) -> bytes:
    """Ask for the facts about a client's connection."""
    return _encode(_Question(client_id))


def trace_question(client_id: bytes, trace: str, until_ms: int) -> bytes:
    """Ask for the packets of a client, see `Traces.read`."""
    return _encode(_Question(client_id, trace, until_ms))


def services_question(query: ServiceQuery) -> bytes:
    """Ask for cloud services, see `services_here`."""
    return _encode(_Question(b"", services=query))


def answer_question(sessions: Sessions, clients: ServiceClients, asked: bytes) -> bytes:
    """The answer of this process."""
    about = _read_question(asked)
    if about.services is not None:
        return _encode(Answer(services=services_here(clients, sessions, about.services)))
    if about.trace:
        lines, dropped = sessions.traces.read(about.client_id, about.trace, about.until_ms)
        return _encode(Answer(None, lines, dropped))
    opened = sessions.open_sessions.get(about.client_id)
    return _encode(Answer(None if opened is None else facts_of(*opened)))


def read_answer(answer: bytes) -> Answer:
    return _read_answer(answer)
