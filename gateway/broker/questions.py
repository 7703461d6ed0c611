"""Questions that the process of a store asks its gateways about their clients, and the answers, in MessagePack."""

from typing import Final

import msgspec

from gateway.broker.connection_facts import ConnectionFacts, facts_of
from gateway.broker.sessions import Sessions
from gateway.connection.packet_trace import TraceLine


class _Question(msgspec.Struct, frozen=True, array_like=True):
    client_id: bytes
    trace: str = ""  # name of a trace that is read; "": the facts are asked for
    until_ms: int = 0


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway says about a client."""

    facts: ConnectionFacts | None = None  # None: it does not have the client
    lines: list[TraceLine] = []
    dropped: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode
_read_question: Final = msgspec.msgpack.Decoder(_Question).decode
_read_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def question(client_id: bytes) -> bytes:
    """Ask for the facts about a client's connection."""
    return _encode(_Question(client_id))


def trace_question(client_id: bytes, trace: str, until_ms: int) -> bytes:
    """Ask for the packets of a client, see `Traces.read`."""
    return _encode(_Question(client_id, trace, until_ms))


def answer_question(sessions: Sessions, asked: bytes) -> bytes:
    """The answer of this process."""
    about = _read_question(asked)
    if about.trace:
        lines, dropped = sessions.traces.read(about.client_id, about.trace, about.until_ms)
        return _encode(Answer(None, lines, dropped))
    opened = sessions.open_sessions.get(about.client_id)
    return _encode(Answer(None if opened is None else facts_of(*opened)))


def read_answer(answer: bytes) -> Answer:
    return _read_answer(answer)
