"""Questions that the process of a store asks its gateways about their clients, and the answers, in MessagePack."""

from typing import Final

import msgspec

from gateway.broker.connection_facts import ConnectionFacts, facts_of
from gateway.broker.sessions import Sessions


class _Question(msgspec.Struct, frozen=True, array_like=True):
    client_id: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a gateway says about a client."""

    facts: ConnectionFacts | None = None  # None: it does not have the client


_encode: Final = msgspec.msgpack.Encoder().encode
_read_question: Final = msgspec.msgpack.Decoder(_Question).decode
_read_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def question(client_id: bytes) -> bytes:
    """Ask for the facts about a client's connection."""
    return _encode(_Question(client_id))


def answer_question(sessions: Sessions, asked: bytes) -> bytes:
    """The answer of this process."""
    opened = sessions.open_sessions.get(_read_question(asked).client_id)
    return _encode(Answer(None if opened is None else facts_of(*opened)))


def read_answer(answer: bytes) -> Answer:
    return _read_answer(answer)
