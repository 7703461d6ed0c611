"""Holds payloads against the schemas that are bound to their topics."""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.mqtt.properties import user_property
from gateway.schemas.entries import Binding, Mode
from gateway.schemas.errors import InvalidPayload
from gateway.schemas.kinds import Schema
from matcher.trie import Trie

ERROR: Final = b"schema-error"  # user properties of messages that are marked or in quarantine
SUBJECT: Final = b"schema-subject"
TOPIC: Final = b"schema-topic"  # where a message in quarantine was published to
_MAGIC: Final = 0  # first byte of Confluent's wire format; the id of the schema follows, in 4 bytes
_HEADER: Final = 5  # bytes
_CACHED: Final = 65_536  # references in the cache of matches
_SEVERITY: Final[dict[Mode, int]] = {"mark": 0, "quarantine": 1, "refuse": 2}
_DONE: Final[dict[Mode, str]] = {"mark": "marked", "quarantine": "quarantined", "refuse": "refused"}


class Fault:
    """What is wrong with a payload, and what becomes of its message."""

    __slots__ = ("mode", "quarantine", "subject", "text")

    def __init__(self, mode: Mode, subject: str, text: str, quarantine: bytes) -> None:
        """quarantine: topic; b"" with another mode."""
        self.mode: Mode = mode
        self.subject = subject
        self.text = text
        self.quarantine = quarantine

    @property
    def reason(self) -> str:
        """The fault and the subject, for whoever published the message."""
        return f"the payload does not match the schema {self.subject}: {self.text}"

    def properties(self, topic: bytes) -> bytes:
        """The user properties that the message gets, encoded. topic: where it was published to."""
        added = user_property(ERROR, self.text.encode()) + user_property(SUBJECT, self.subject.encode())
        return added + user_property(TOPIC, topic) if self.quarantine else added


class SubjectCheck:
    """Checks payloads of one subject."""

    __slots__ = ("_by_id", "_schema", "subject")

    def __init__(self, subject: str, schema: Schema, by_id: Mapping[int, Schema]) -> None:
        """schema: of payloads that do not say which. by_id: of those in Confluent's wire format."""
        self.subject = subject
        self._schema = schema
        self._by_id = by_id

    def check(self, payload: bytes) -> None:
        """Raises `InvalidPayload`."""
        if len(payload) < _HEADER or payload[0] != _MAGIC:
            self._schema.check(payload)
            return
        number = int.from_bytes(payload[1:_HEADER], "big")
        schema = self._by_id.get(number)
        if schema is not None:
            try:
                schema.check_framed(payload[_HEADER:])
            except InvalidPayload:
                if schema.kind != "AVRO":
                    raise
            else:
                return
        elif self._schema.kind != "AVRO":
            raise InvalidPayload(f"schema {number} is not one of the subject {self.subject}")
        # A zero may also begin a value of Avro. JSON and Protobuf never begin so.
        self._schema.check(payload)


class PayloadChecks:
    """The checks of all topics. There may be none, which `is_active` says at the cost of one look."""

    __slots__ = ("_bound", "faults", "is_active")

    def __init__(self) -> None:
        self.is_active: bool = False
        self.faults: dict[Mode, int] = dict.fromkeys(_SEVERITY, 0)  # messages, by what became of them
        self._bound: Trie[tuple[Binding, SubjectCheck]] = Trie(_CACHED)

    def replace(self, bound: Sequence[tuple[Binding, SubjectCheck]]) -> None:
        """Check by these bindings from now on."""
        trie: Trie[tuple[Binding, SubjectCheck]] = Trie(_CACHED)
        for each in bound:
            trie.add(each[0].topic_filter.encode(), each)
        self._bound = trie
        self.is_active = bool(bound)

    def fault(self, topic: bytes, payload: bytes) -> Fault | None:
        """What is wrong with the payload of a message, by the strictest of the bindings that it fails; None: nothing,
        or its topic has no binding. The fault is counted."""
        worst: Fault | None = None
        for binding, check in self._bound.match(topic):
            if worst is None or _SEVERITY[binding.mode] > _SEVERITY[worst.mode]:
                try:
                    check.check(payload)
                except InvalidPayload as error:
                    worst = Fault(binding.mode, check.subject, str(error), binding.quarantine.encode())
        if worst is not None:
            self.faults[worst.mode] += 1
        return worst

    def figures(self) -> dict[str, int]:
        return {f"payloads_{_DONE[mode]}": count for mode, count in self.faults.items()}
