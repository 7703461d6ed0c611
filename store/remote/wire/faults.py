"""Encodes the store's errors for gateways, which raise the same class with the same text."""

from typing import Final

import msgspec

from matcher.selector import SelectorError
from store import errors
from store.errors import LogCorrupt, OffsetOutOfRange, StoreError

_PLAIN: Final[dict[str, type[Exception]]] = {"ValueError": ValueError} | {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, StoreError)
}


class RemoteFault(msgspec.Struct, frozen=True, array_like=True):
    """An encoded error: its class, its text, and the fields of some classes."""

    name: str
    text: str
    subject: bytes = b""  # the queue, the segment, or the condition
    numbers: tuple[int, ...] = ()


def fault_of(error: BaseException) -> RemoteFault:
    """Encode an error. Unexpected exceptions become a `StoreError`, because the gateway did not cause them."""
    if isinstance(error, OffsetOutOfRange):
        return RemoteFault("OffsetOutOfRange", str(error), error.queue, (error.offset, error.begin, error.end))
    if isinstance(error, LogCorrupt):
        return RemoteFault("LogCorrupt", error.what, error.segment.encode(), (error.position,))
    if isinstance(error, SelectorError):
        return RemoteFault("SelectorError", error.message, error.text.encode(), (error.column,))
    name = "ValueError" if isinstance(error, ValueError) else type(error).__name__
    if name in _PLAIN:
        return RemoteFault(name, str(error))
    return RemoteFault("StoreError", str(error) if isinstance(error, StoreError) else f"the store failed: {error!r}")


def error_of(fault: RemoteFault) -> Exception:
    """Decode an error."""
    if fault.name == "OffsetOutOfRange":
        offset, begin, end = fault.numbers
        return OffsetOutOfRange(fault.subject, offset, begin, end)
    if fault.name == "LogCorrupt":
        return LogCorrupt(fault.subject.decode(), fault.numbers[0], fault.text)
    if fault.name == "SelectorError":
        return SelectorError(fault.text, fault.numbers[0], fault.subject.decode())
    kind = _PLAIN.get(fault.name, StoreError)
    error = kind.__new__(kind)  # without its constructor, which would build the text again
    error.args = (fault.text,)
    return error
