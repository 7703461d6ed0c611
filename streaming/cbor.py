"""Converting CBOR to JSON (RFC 8949, section 6.1), for devices that send CBOR and tools that read JSON. Pure.

No length in the data is trusted: everything that is read must lie within the data. Items may nest 64 levels deep.
"""

import json
import math
import struct
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import Final

_MAX_DEPTH: Final = 64
_MAX_BIGNUM: Final = 64  # bytes
_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_SIMPLE: Final = {20: False, 21: True, 22: None, 23: None}  # undefined is null in JSON
_BREAK: Final = 0xFF
_INDEFINITE: Final = 31
_EPOCH: Final = 1  # tags
_BIGNUMS: Final = {2: 1, 3: -1}


class CborError(ValueError):
    """The data is not one CBOR item."""


def to_json(data: bytes) -> str:
    """Convert one item to JSON text. Raises `CborError`, also for bytes after the item.

    Byte strings become base64url, times since 1970 (tag 1) ISO 8601 and numbers that are not finite null. A map key
    that is not a text becomes the text of its JSON.
    """
    reader = _Reader(data)
    value = reader.item(0)
    if reader.at != len(data):
        raise CborError(f"{len(data) - reader.at} bytes after the item")
    return json.dumps(value, ensure_ascii=False)


class _Reader:
    """A position in the data that moves forward."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def item(self, depth: int) -> object:
        """Read the next item as a JSON value."""
        if depth > _MAX_DEPTH:
            raise CborError("items nest too deep")
        first = self._read(1)[0]
        major, info = first >> 5, first & 31
        if major == 7:
            return self._simple(info)
        if info == _INDEFINITE:
            return self._indefinite(major, depth)
        argument = self._argument(info)
        if major == 0:
            return argument
        if major == 1:
            return -1 - argument
        if major == 6:
            return self._tagged(argument, depth)
        return self._sized(major, argument, depth)

    def _sized(self, major: int, size: int, depth: int) -> object:
        if major in (2, 3):
            return _string(major, self._read(size))
        if size > len(self._data) - self.at:  # an element takes at least one byte
            raise CborError("an array or map is longer than the data")
        if major == 4:
            return [self.item(depth + 1) for _ in range(size)]
        return dict(self._pair(depth) for _ in range(size))

    def _indefinite(self, major: int, depth: int) -> object:
        """Read items up to a break. The chunks of a string must be strings of the same kind."""
        if major in (2, 3):
            pieces = bytearray()
            while not self._is_break():
                first = self._read(1)[0]
                if first >> 5 != major or first & 31 == _INDEFINITE:
                    raise CborError("a chunk of a string has another type than the string")
                pieces += self._read(self._argument(first & 31))
            return _string(major, bytes(pieces))
        if major == 4:
            items: list[object] = []
            while not self._is_break():
                items.append(self.item(depth + 1))
            return items
        if major == 5:
            pairs: dict[str, object] = {}
            while not self._is_break():
                key, value = self._pair(depth)
                pairs[key] = value
            return pairs
        raise CborError("an item of this type needs a length")

    def _pair(self, depth: int) -> tuple[str, object]:
        key = self.item(depth + 1)
        return key if isinstance(key, str) else json.dumps(key), self.item(depth + 1)

    def _tagged(self, tag: int, depth: int) -> object:
        if tag in _BIGNUMS and self.at < len(self._data) and self._data[self.at] >> 5 == 2:
            size = self._argument(self._read(1)[0] & 31)
            if size > _MAX_BIGNUM:
                raise CborError("a number is too large")
            number = int.from_bytes(self._read(size), "big")
            return number if _BIGNUMS[tag] > 0 else -1 - number
        value = self.item(depth + 1)
        if tag == _EPOCH and isinstance(value, int | float):
            try:
                return datetime.fromtimestamp(value, UTC).isoformat()
            except (OverflowError, ValueError, OSError):
                return None
        return value

    def _simple(self, info: int) -> object:
        if info in _SIMPLE:
            return _SIMPLE[info]
        if info in _FLOATS:
            value = struct.unpack(_FLOATS[info], self._read(1 << info - 24))[0]
            return value if math.isfinite(value) else None
        raise CborError(f"the simple value {info} is not supported")

    def _argument(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise CborError(f"the length code {info} is reserved")
        return int.from_bytes(self._read(1 << info - 24), "big")

    def _is_break(self) -> bool:
        if self.at < len(self._data) and self._data[self.at] == _BREAK:
            self.at += 1
            return True
        return False

    def _read(self, size: int) -> bytes:
        piece = self._data[self.at : self.at + size]
        if len(piece) != size:
            raise CborError("the data is cut short")
        self.at += size
        return piece


def _string(major: int, data: bytes) -> str:
    if major == 2:
        return urlsafe_b64encode(data).rstrip(b"=").decode()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CborError("a text is not UTF-8") from error
