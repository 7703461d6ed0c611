"""The levels of topics and the properties of messages as Arrow buffers, in plain Python. `_blocks.pyx` has them
compiled: change both. A test holds them equal."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from struct import pack, unpack
from typing import Final

_PAYLOAD_FORMAT: Final = 0x01
_MESSAGE_EXPIRY: Final = 0x02
_CONTENT_TYPE: Final = 0x03
_RESPONSE_TOPIC: Final = 0x08
_CORRELATION_DATA: Final = 0x09
_USER_PROPERTY: Final = 0x26
_LAST_BORN: Final = 253_402_300_799_999  # ms: the year 9999
_DIGITS: Final = 15


def property_columns(offsets: bytes, data: bytes) -> tuple[bytes, ...]:
    """Return the properties of messages as Arrow buffers. `offsets` (int32, rows + 1) divides `data` into the property
    blocks of the rows.

    The tuple has, for the first user property `key` of each row, a bitmap of the rows that have one, and int32 offsets
    and data; for its user properties `tag`, the int32 offsets of its list, and offsets and data; for all its user
    properties, the int32 offsets of its map, offsets and data of names, and offsets and data of values: of a name that
    repeats, the last value; for the content type, a bitmap, offsets and data; for the first user property `born-ms`
    that is a time in ms, in decimal digits and before the year 10000, a bitmap and int64 values. Raises ValueError for
    a malformed block.
    """
    keys: list[bytes | None] = []
    tags: list[list[bytes]] = []
    maps: list[dict[bytes, bytes]] = []
    types: list[bytes | None] = []
    born: list[int | None] = []
    for block in _rows(offsets, data):
        found = list(_properties(block))
        users = [(name, value) for identifier, name, value in found if identifier == _USER_PROPERTY]
        keys.append(next((value for name, value in users if name == b"key"), None))
        tags.append([value for name, value in users if name == b"tag"])
        maps.append(dict(users))
        types.append(next((value for identifier, _, value in reversed(found) if identifier == _CONTENT_TYPE), None))
        times = (_born(value) for name, value in users if name == b"born-ms")
        born.append(next((time for time in times if time is not None), None))
    return (
        *(_bitmap(keys), *_texts(key or b"" for key in keys)),
        *(_ends(map(len, tags)), *_texts(tag for row in tags for tag in row)),
        *(_ends(map(len, maps)), *_texts(name for row in maps for name in row)),
        *_texts(value for row in maps for value in row.values()),
        *(_bitmap(types), *_texts(each or b"" for each in types)),
        *(_bitmap(born), pack(f"<{len(born)}q", *(time or 0 for time in born))),
    )


def level_columns(offsets: bytes, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the levels of topics as Arrow buffers: the int32 offsets of each row's list, and the offsets and data of
    the levels. `offsets` (int32, rows + 1) divides `data` into topics."""
    rows = [topic.split(b"/") for topic in _rows(offsets, data)]
    return (_ends(map(len, rows)), *_texts(level for row in rows for level in row))


def _rows(offsets: bytes, data: bytes) -> Iterator[bytes]:
    ends = unpack(f"<{len(offsets) // 4}i", offsets[: len(offsets) // 4 * 4])
    if not ends or ends[0] < 0 or ends[-1] > len(data) or list(ends) != sorted(ends):
        raise ValueError("the offsets are not those of the data")
    return (data[start:end] for start, end in pairwise(ends))


def _properties(block: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(identifier, name of a user property, text) of each property; other properties than texts have no text."""
    at, size = 0, len(block)
    while at < size:
        identifier, name, value = block[at], b"", b""
        at += 1
        if identifier in (_PAYLOAD_FORMAT, _MESSAGE_EXPIRY):
            at += 1 if identifier == _PAYLOAD_FORMAT else 4
        elif identifier in (_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA, _USER_PROPERTY):
            if identifier == _USER_PROPERTY:
                name, at = _text(block, at)
            value, at = _text(block, at)
        else:
            raise ValueError("a block of properties is malformed")
        if at > size:
            raise ValueError("a block of properties is malformed")
        yield identifier, name, value


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    start = at + 2
    end = start + int.from_bytes(block[at:start], "big")
    if end > len(block):
        raise ValueError("a block of properties is malformed")
    return block[start:end], end


def _born(text: bytes) -> int | None:
    if not 0 < len(text) <= _DIGITS or not text.isdigit():
        return None
    return int(text) if int(text) <= _LAST_BORN else None


def _bitmap(values: list[bytes | None] | list[int | None]) -> bytes:
    bits = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        bits[row >> 3] |= (value is not None) << (row & 7)
    return bytes(bits)


def _ends(sizes: Iterable[int]) -> bytes:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return pack(f"<{len(ends)}i", *ends)


def _texts(texts: Iterable[bytes]) -> tuple[bytes, bytes]:
    found = list(texts)
    return _ends(map(len, found)), b"".join(found)
