"""The document of a shadow: how an update changes it, and what the answers say. Bytes in, documents out.

The semantics are those of AWS IoT's Device Shadow service
(https://docs.aws.amazon.com/iot/latest/developerguide/device-shadow-document.html): an update is merged, null removes a
field, arrays are values, and each accepted update raises the version. Metadata has the time of each value, in seconds
since 1970.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

Document = dict[str, Any]

SECTIONS: Final = ("desired", "reported")
MAX_TOKEN: Final = 64  # bytes of a client token, as with AWS IoT
_KNOWN: Final = frozenset(("state", "version", "clientToken"))
_MISSING: Final = object()


class ShadowRejected(Exception):
    """A request is not carried out. The message says why."""

    def __init__(self, code: int, text: str, token: str | None = None) -> None:
        """code: a status of HTTP, as AWS IoT has them. token: the client token of the request."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.token = token


@dataclass(slots=True)
class Shadow:
    """What is stored of a shadow."""

    state: Document = field(default_factory=dict)  # "desired" and "reported", if they have fields
    metadata: Document = field(default_factory=dict)
    version: int = 0  # 0: it was never there
    deleted_ms: int = 0  # when it was deleted, ms since 1970; 0: it is there
    # Positions of the messages that changed it in the last batch that had one. A message that comes again is not
    # applied again.
    applied: list[int] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        return self.version > 0 and not self.deleted_ms

    @classmethod
    def of_value(cls, value: bytes) -> "Shadow":
        """Of the value of an entry. Raises `ShadowRejected` if somebody has put another value there."""
        try:
            found = orjson.loads(value)
            return cls(
                found.get("state", {}),
                found.get("metadata", {}),
                int(found["version"]),
                int(found.get("deleted", 0)),
                list(found.get("applied", ())),
            )
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            raise ShadowRejected(500, "the entry in the bucket `shadow` is not that of a shadow") from None

    def value(self) -> bytes:
        """The value of its entry."""
        document: Document = {"state": self.state, "metadata": self.metadata, "version": self.version}
        if self.deleted_ms:
            document["deleted"] = self.deleted_ms
        if self.applied:
            document["applied"] = self.applied
        return orjson.dumps(document)

    def shown(self) -> Document:
        """As answers have it, with what is desired and not reported."""
        state = dict(self.state)
        delta, _ = self.delta()
        if delta:
            state["delta"] = delta
        return {"state": state, "metadata": self.metadata, "version": self.version}

    def kept(self) -> Document:
        """As the answer `documents` has it."""
        return {"state": self.state, "metadata": self.metadata, "version": self.version}

    def delta(self) -> tuple[Document, Document]:
        """The desired fields that are not reported so, and their metadata."""
        return _delta(self.state.get("desired", {}), self.state.get("reported", {}), self.metadata.get("desired", {}))

    def merge(self, update: "Update", now_s: int) -> None:
        """Change the state as an update says."""
        for section, change in update.state.items():
            state, metadata = self.state.setdefault(section, {}), self.metadata.setdefault(section, {})
            if change is None:
                state.clear()
                metadata.clear()
            else:
                _merge(state, metadata, change, now_s)
            if not state:
                del self.state[section], self.metadata[section]
        self.version += 1
        self.deleted_ms = 0


@dataclass(slots=True, frozen=True)
class Update:
    """A request to change a shadow."""

    state: Document  # "desired" and "reported", as far as they are given: an object, or None
    version: int | None  # that the shadow must have; 0: it must not be there
    token: str | None

    def metadata(self, now_s: int) -> Document:
        """The metadata of the fields that it sets."""
        return {section: _stamped(change, now_s) for section, change in self.state.items() if change is not None}


def parse_update(payload: bytes, max_document: int, max_depth: int) -> Update:
    """Parse a request. max_document: bytes. max_depth: levels of objects and arrays of a section. Raises
    `ShadowRejected`."""
    if len(payload) > max_document:
        raise ShadowRejected(413, f"the request has {len(payload)} bytes, and the limit is {max_document}")
    document = _object(payload)
    token = _token_of(document)
    unknown = sorted(document.keys() - _KNOWN)
    if unknown:
        raise ShadowRejected(400, f"the request has an unknown field: {unknown[0][:100]!r}", token)
    version = document.get("version")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 0):
        raise ShadowRejected(400, "version is not a whole number from 0 on", token)
    state = document.get("state", _MISSING)
    if state is _MISSING:
        raise ShadowRejected(400, "the request has no state", token)
    if not isinstance(state, dict):
        raise ShadowRejected(400, "state is not an object", token)
    for section, change in state.items():
        if section not in SECTIONS:
            raise ShadowRejected(400, f"state has desired and reported alone, not {section[:100]!r}", token)
        if change is not None and not isinstance(change, dict):
            raise ShadowRejected(400, f"{section} is neither an object nor null", token)
        if _is_deeper(change, max_depth):
            raise ShadowRejected(400, f"{section} has more than {max_depth} levels", token)
    return Update(state, version, token)


def parse_token(payload: bytes, max_document: int) -> str | None:
    """The client token of a request that needs no payload. Raises `ShadowRejected`."""
    if len(payload) > max_document:
        raise ShadowRejected(413, f"the request has {len(payload)} bytes, and the limit is {max_document}")
    return _token_of(_object(payload)) if payload else None


def size_of(state: Document) -> int:
    """Bytes of a state as JSON. Metadata does not count."""
    return len(orjson.dumps(state))


def _object(payload: bytes) -> Document:
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError:
        raise ShadowRejected(400, "the request is not JSON") from None
    if not isinstance(document, dict):
        raise ShadowRejected(400, "the request is not a JSON object")
    return document


def _token_of(document: Document) -> str | None:
    token = document.get("clientToken")
    if token is None or (isinstance(token, str) and len(token.encode()) <= MAX_TOKEN):
        return token
    raise ShadowRejected(400, f"clientToken is not a text of up to {MAX_TOKEN} bytes")


def _is_deeper(value: object, most: int) -> bool:
    """Whether objects and arrays are within each other more than `most` times."""
    if not isinstance(value, (dict, list)):
        return False
    if most == 0:
        return True
    return any(_is_deeper(each, most - 1) for each in (value.values() if isinstance(value, dict) else value))


def _stamped(value: object, now_s: int) -> Any:
    """The metadata of a value."""
    if isinstance(value, dict):
        return {name: _stamped(each, now_s) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_stamped(each, now_s) for each in value]
    return {"timestamp": now_s}


def _merge(state: Document, metadata: Document, change: Document, now_s: int) -> None:
    for name, value in change.items():
        if value is None:
            state.pop(name, None)
            metadata.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(state.get(name), dict):
                state[name], metadata[name] = {}, {}
            _merge(state[name], metadata[name], value, now_s)
        else:
            state[name] = value
            metadata[name] = _stamped(value, now_s)


def _delta(desired: Document, reported: Document, metadata: Document) -> tuple[Document, Document]:
    state: Document = {}
    about: Document = {}
    for name, value in desired.items():
        other = reported.get(name, _MISSING)
        if isinstance(value, dict) and isinstance(other, dict):
            inner, inner_about = _delta(value, other, metadata.get(name, {}))
            if inner:
                state[name], about[name] = inner, inner_about
        elif not _is_same(value, other):
            state[name], about[name] = value, metadata.get(name, {})
    return state, about


def _is_same(one: object, other: object) -> bool:
    """Whether two values of JSON are the same: true is not 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    return isinstance(one, bool) == isinstance(other, bool) and one == other
