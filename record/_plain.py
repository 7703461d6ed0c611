"""The frame functions in plain Python, used where `_frames.pyx` is not compiled: change both.

A test holds them equal.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final

import google_crc32c

from record.layout import (
    FLAG_DELAYED,
    FLAG_HELD,
    FLAG_REVIVED,
    HEADER_SIZE,
    MAGIC,
    MAX_FRAME,
    MAX_KEY,
    MAX_KEYS,
    NAMES_KEY,
    TRAILER_SIZE,
    VERSION,
    Kind,
)

_HEADER: Final = Struct("<IIHBBIQQHHHHII")
_REF: Final = Struct("<QIIQ")
_LENGTH: Final = Struct("<I")
_TRAILER: Final = Struct("<Q")
_HAS_TRAILER: Final = FLAG_DELAYED | FLAG_REVIVED
_LAST_KIND: Final = max(Kind)
# What travels with an application message (MQTT 5.0, 2.2.2.2).
_FIXED: Final = {0x01: 1, 0x02: 4}  # bytes of payload format and message expiry
_TEXTS: Final = (0x03, 0x08, 0x09)  # content type, response topic, correlation data
_USER_PROPERTY: Final = 0x26


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of `data`."""
    return int(google_crc32c.value(data))


def crc32c_table(data: bytes) -> int:
    """CRC-32C; see the compiled module."""
    return crc32c(data)


def frame(
    kind: int,
    flags: int,
    packet_id: int,
    topic: bytes,
    publisher: bytes,
    properties: bytes,
    payload: bytes,
    trailer: int | None = None,
) -> bytes:
    """Build one unsealed frame.

    trailer: the number behind the payload, for two of the flags. With `FLAG_DELAYED` it is the due time in ms, with
    `FLAG_REVIVED` the handle of the held message that this one stands in for. Raises ValueError if a field is too
    large, if trailer and flags do not match, or if the frame would be revived and held at once.
    """
    if not (0 <= kind <= 0xFF and 0 <= flags <= 0xFFFF and 0 <= packet_id <= 0xFFFF):
        raise ValueError("kind, flags or packet id out of range")
    if bool(flags & _HAS_TRAILER) != (trailer is not None) or (flags & FLAG_REVIVED and flags & FLAG_HELD):
        raise ValueError("the flags and the trailer do not go together")
    if trailer is not None and not 0 <= trailer <= 0xFFFF_FFFF_FFFF_FFFF:
        raise ValueError("trailer out of range")
    behind = b"" if trailer is None else _TRAILER.pack(trailer)
    total = HEADER_SIZE + len(topic) + len(publisher) + len(properties) + len(payload) + len(behind)
    if len(topic) > 0xFFFF or len(publisher) > 0xFFFF or total > MAX_FRAME:
        raise ValueError("topic, publisher or frame too large")
    header = _HEADER.pack(
        0, total, MAGIC, VERSION, kind, 0, 0, 0, flags, len(topic), len(publisher), packet_id, len(properties), 0
    )
    return b"".join((header, topic, publisher, properties, payload, behind))


def _length_at(data: bytes, start: int) -> int:
    """The length of the frame at `start`; 0 if it is not a frame that ends inside `data`. Reads only the header."""
    left = len(data) - start
    if start < 0 or left < HEADER_SIZE:
        return 0
    header = _HEADER.unpack_from(data, start)
    length: int = header[1]
    if not HEADER_SIZE <= length <= min(left, MAX_FRAME) or header[2] != MAGIC or header[3] != VERSION:
        return 0
    fields = HEADER_SIZE + header[9] + header[10] + header[12] + _trailer_size(header[8])
    return length if fields <= length else 0


def _trailer_size(flags: int) -> int:
    return TRAILER_SIZE if flags & _HAS_TRAILER else 0


def length_of(data: bytes, start: int) -> int:
    """Length of the frame at `start` in bytes."""
    length = _length_at(data, start)
    if length == 0:
        raise ValueError(f"no frame at {start}")
    return length


def seal(frames: Sequence[bytes], position: int, epoch: int, store_time: int, durable: int) -> bytes:
    """Return the frames back to back, with epoch, position, store time, undurable distance and CRC filled in.

    Raises ValueError if an item is not exactly one frame of a known kind, if `durable` is behind `position`, or if
    `durable` is 4 GiB or more before the end of the frames.
    """
    if any(len(item) == 0 or _length_at(item, 0) != len(item) for item in frames):
        raise ValueError("not exactly one frame")
    if any(not 0 < item[11] <= _LAST_KIND for item in frames):
        raise ValueError("a record of unknown kind")
    if durable > position or position + sum(map(len, frames)) - durable > 0xFFFFFFFF:
        raise ValueError("durable position out of range")
    out = bytearray()
    for item in frames:
        own = bytearray(item)
        own[12:32] = Struct("<IQQ").pack(epoch, position, store_time)
        own[44:48] = _LENGTH.pack(position - durable)
        own[0:4] = _LENGTH.pack(crc32c(bytes(own[4:])))
        out += own
        position += len(own)
    return bytes(out)


def check_unsealed(data: bytes, messages_only: bool = True) -> list[bytes]:
    """Split concatenated unsealed frames that came over a network.

    Raises ValueError if the lengths do not add up, and for an unknown kind. With `messages_only`, it also refuses what
    only the store makes: control records and revived messages.
    """
    ends = [*split(data), len(data)]
    if any(not 0 < data[start + 11] <= _LAST_KIND for start in ends[:-1]):
        raise ValueError("a frame is of unknown kind")
    if messages_only:
        for start in ends[:-1]:
            if data[start + 11] != Kind.MESSAGE or data[start + 32] & FLAG_REVIVED:
                raise ValueError("a frame is not a message of a front")
    return [data[start:end] for start, end in pairwise(ends)]


def verify(data: bytes, position: int) -> tuple[int, int]:
    """Check sealed frames, of which the first belongs at `position`, up to the first invalid one.

    Returns (start of the last valid frame, bytes of all valid frames); (0, 0) if there is none.
    """
    last = at = 0
    while length := _length_at(data, at):
        crc = _LENGTH.unpack_from(data, at)[0]
        if position_of(data, at) != position + at or crc32c(data[at + 4 : at + length]) != crc:
            break
        last = at
        at += length
    return last, at


def split(data: bytes) -> list[int]:
    """Return the starts of the frames in trusted bytes. Raises ValueError if the lengths do not add up."""
    starts: list[int] = []
    at = 0
    while at < len(data):
        starts.append(at)
        at += length_of(data, at)
    return starts


def decode(data: bytes, start: int) -> tuple[int, int, int, bytes, bytes, bytes, bytes]:
    """Return (kind, flags, packet id, topic, publisher, properties, payload) of the frame at `start`."""
    end = start + length_of(data, start)
    header = _HEADER.unpack_from(data, start)
    end -= _trailer_size(header[8])
    topic = start + HEADER_SIZE
    publisher = topic + header[9]
    properties = publisher + header[10]
    payload = properties + header[12]
    return (
        header[4],
        header[8],
        header[11],
        data[topic:publisher],
        data[publisher:properties],
        data[properties:payload],
        data[payload:end],
    )


def decode_all(data: bytes) -> list[tuple[int, int, int, bytes, bytes, bytes, bytes]]:
    """(position, store time, flags, topic, publisher, properties, payload) of each of the sealed frames in trusted
    bytes. ValueError when lengths do not add up."""
    rows: list[tuple[int, int, int, bytes, bytes, bytes, bytes]] = []
    for start in split(data):
        header = _HEADER.unpack_from(data, start)
        topic = start + HEADER_SIZE
        publisher = topic + header[9]
        properties = publisher + header[10]
        payload = properties + header[12]
        end = start + header[1] - _trailer_size(header[8])
        rows.append(
            (
                header[6],
                header[7],
                header[8],
                data[topic:publisher],
                data[publisher:properties],
                data[properties:payload],
                data[payload:end],
            )
        )
    return rows


def trailer_of(data: bytes, start: int) -> int:
    """Return the trailer of the frame at `start` (see `frame`). Raises ValueError if its flags say that it has none."""
    end = start + length_of(data, start)
    if not _HEADER.unpack_from(data, start)[8] & _HAS_TRAILER:
        raise ValueError(f"no trailer in the frame at {start}")
    number: int = _TRAILER.unpack_from(data, end - TRAILER_SIZE)[0]
    return number


def position_of(data: bytes, start: int) -> int:
    """Log position of the sealed frame at `start`."""
    length_of(data, start)
    return int.from_bytes(data[start + 16 : start + 24], "little")


def store_time_of(data: bytes, start: int) -> int:
    """Store time in ms of the sealed frame at `start`."""
    length_of(data, start)
    return int.from_bytes(data[start + 24 : start + 32], "little")


def durable_of(data: bytes, start: int) -> int:
    """Position up to which the log was durable when the sealed frame at `start` was written."""
    return (position_of(data, start) - int.from_bytes(data[start + 44 : start + 48], "little")) % (1 << 64)


def keys_of(properties: bytes) -> list[bytes]:
    """Return the keys by which a message with this property block can be found.

    They are the values of its user properties named `key`: the first `MAX_KEYS` distinct ones, without empty values
    and values longer than `MAX_KEY`. A malformed block has no keys.
    """
    pairs = _user_properties(properties)
    return list(dict.fromkeys(value for name, value in pairs if name == b"key" and 0 < len(value) <= MAX_KEY))[
        :MAX_KEYS
    ]


def tag_of(topic: bytes, properties: bytes) -> int:
    """Return the tag of a message in references.

    If the message names an ordering key, in its last user property `ordering_key` that is not empty, it is the CRC-32C
    of that key with `NAMES_KEY` set. Otherwise, and if the property block is malformed, it is that of the topic with
    `NAMES_KEY` cleared.
    """
    for name, value in reversed(_user_properties(properties)):
        if name == b"ordering_key" and value:
            return crc32c(value) | NAMES_KEY
    return crc32c(topic) & ~NAMES_KEY


def _user_properties(properties: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of the user properties of a block; none of a malformed one."""
    pairs: list[tuple[bytes, bytes]] = []
    at, size = 0, len(properties)
    while at < size:
        identifier = properties[at]
        at += 1
        if identifier in _FIXED:
            end = at + _FIXED[identifier]
        elif identifier in _TEXTS:
            end = _text_end(properties, at)
        elif identifier == _USER_PROPERTY:
            value = _text_end(properties, at)
            end = _text_end(properties, value)
            pairs.append((properties[at + 2 : value], properties[value + 2 : end]))
        else:
            return []
        if end > size:
            return []
        at = end
    return pairs


def _text_end(block: bytes, at: int) -> int:
    """Where the string or binary data at `at` ends; beyond the block if it is cut short."""
    return at + 2 + int.from_bytes(block[at : at + 2], "big")


def scan(
    data: bytes,
) -> tuple[list[int], list[int], list[int], list[bytes], list[bytes], list[tuple[int, bytes]]]:
    """Return (starts, kinds, flags, topics, references, keyed) of trusted sealed frames, in one pass for the fold.

    A reference is the packed index entry of a frame (see `pack_refs`), with its tag (see `tag_of`). `keyed` has
    (index, properties) of each message that has keys (see `keys_of`).
    """
    starts = split(data)
    kinds: list[int] = []
    flags: list[int] = []
    topics: list[bytes] = []
    refs: list[bytes] = []
    keyed: list[tuple[int, bytes]] = []
    for start in starts:
        header = _HEADER.unpack_from(data, start)
        topic = data[start + HEADER_SIZE : start + HEADER_SIZE + header[9]]
        kinds.append(header[4])
        flags.append(header[8])
        topics.append(topic)
        properties = b""
        if header[4] == Kind.MESSAGE and header[12]:
            block = start + HEADER_SIZE + header[9] + header[10]
            properties = data[block : block + header[12]]
            if keys_of(properties):
                keyed.append((len(refs), properties))
        refs.append(_REF.pack(header[6], header[1], tag_of(topic, properties), header[7]))
    return starts, kinds, flags, topics, refs, keyed


def columns(
    data: bytes,
) -> tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
    """Return trusted sealed frames as Arrow buffers, with one row for each frame of any kind.

    The tuple has the number of rows, positions (int64), store times in ms (int64) and flags (int8: the low byte, which
    has the QoS). For each of topic, publisher, properties and payload, int32 offsets (rows + 1) and the data follow.
    All buffers are little-endian. Raises ValueError if the lengths do not add up or the data reaches 2 GiB.
    """
    if len(data) > 0x7FFFFFFF:
        raise ValueError("more than int32 offsets can address")
    starts = split(data)
    rows = [decode(data, start) for start in starts]
    buffers: list[bytes] = []
    for field in range(3, 7):
        pieces = [row[field] for row in rows]
        offsets = bytearray(4)
        end = 0
        for piece in pieces:
            assert isinstance(piece, bytes)
            end += len(piece)
            offsets += _LENGTH.pack(end)
        buffers += (bytes(offsets), b"".join(piece for piece in pieces if isinstance(piece, bytes)))
    return (
        len(starts),
        b"".join(data[start + 16 : start + 24] for start in starts),
        b"".join(data[start + 24 : start + 32] for start in starts),
        bytes(data[start + 32] for start in starts),
        *(buffers[0], buffers[1], buffers[2], buffers[3]),
        *(buffers[4], buffers[5], buffers[6], buffers[7]),
    )


def pick(data: bytes | memoryview, base: int, refs: bytes, first: int, stop: int, parts: int = 0) -> tuple[bytes, int]:
    """Copy the sealed records that the packed references [first, stop) name out of a piece of the log.

    data: any buffer, of which the first byte is at position `base`. parts: left out of each frame, see `without`.
    Stops at the first record that is damaged, or not whole in `data`. Returns (frames back to back, their number).
    Raises ValueError if there are no such references.
    """
    _require_refs(refs, first, stop)
    pieces: list[bytes] = []
    for index in range(first, stop):
        position, length, _, _ = _REF.unpack_from(refs, index * _REF.size)
        start = position - base
        if start < 0 or length <= 0 or start + length > len(data):
            break
        piece = bytes(data[start : start + length])
        if verify(piece, position) != (0, length):
            break
        pieces.append(without(piece, parts) if parts else piece)
    return b"".join(pieces), len(pieces)


def gather(
    begins: list[int], batches: list[bytes], low: int, refs: bytes, first: int, parts: int = 0
) -> tuple[bytes, int]:
    """Copy the sealed records that the packed references from `first` on name out of several batches of the log.

    begins: the positions of the batches, in rising order. parts: left out of each frame, see `without`. Stops at the
    first record that is damaged, or that no batch from index `low` on has. Returns (frames back to back, their number).
    Raises ValueError if there are no such references or batches.
    """
    count = len(refs) // _REF.size
    _require_refs(refs, first, count)
    if len(begins) != len(batches) or low < 0:
        raise ValueError("there are no such batches")
    pieces: list[bytes] = []
    index = first
    while index < count:
        at = bisect_right(begins, _REF.unpack_from(refs, index * _REF.size)[0], low) - 1
        if at < low:
            break
        stop, end = index + 1, begins[at] + len(batches[at])
        while stop < count and begins[at] <= _REF.unpack_from(refs, stop * _REF.size)[0] < end:
            stop += 1
        piece, found = pick(batches[at], begins[at], refs, index, stop, parts)
        pieces.append(piece)
        index += found
        if index < stop:
            break
    return b"".join(pieces), index - first


def without(data: bytes, parts: int) -> bytes:
    """Return trusted sealed frames with some of their parts (`PART_*`) empty, for readers that do not need these.

    The checksum of each becomes 0, because it is that of the whole frame. Raises ValueError if the lengths do not add
    up.
    """
    pieces: list[bytes] = []
    starts = split(data)
    if not parts:
        return data
    for start in starts:
        header = list(_HEADER.unpack_from(data, start))
        end = start + header[1]
        at = start + HEADER_SIZE
        behind = TRAILER_SIZE if header[8] & _HAS_TRAILER else 0
        sizes = [header[9], header[10], header[12], 0]
        sizes[3] = header[1] - HEADER_SIZE - sum(sizes) - behind
        kept: list[bytes] = []
        for part, size in enumerate(sizes):
            kept.append(b"" if parts >> part & 1 else data[at : at + size])
            at += size
        header[0] = 0
        header[1] = HEADER_SIZE + sum(map(len, kept)) + behind
        header[9], header[10], header[12] = len(kept[0]), len(kept[1]), len(kept[2])
        pieces += (_HEADER.pack(*header), *kept, data[end - behind : end])
    return b"".join(pieces)


def pack_refs(positions: Sequence[int], lengths: Sequence[int], times: Sequence[int], tags: Sequence[int]) -> bytes:
    """Pack references: position u64, length u32, tag u32, store time u64 each.

    Raises ValueError if the columns differ in length.
    """
    if not len(positions) == len(lengths) == len(times) == len(tags):
        raise ValueError("columns of different length")
    return b"".join(map(_REF.pack, positions, lengths, tags, times))


def unpack_refs(data: bytes) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return (positions, lengths, store times, tags) of packed references.

    Raises ValueError if the last one is not whole.
    """
    if len(data) % _REF.size:
        raise ValueError("not whole references")
    rows = list(_REF.iter_unpack(data))
    return [r[0] for r in rows], [r[1] for r in rows], [r[3] for r in rows], [r[2] for r in rows]


def _require_refs(refs: bytes, first: int, stop: int) -> None:
    """Raise ValueError unless the packed references [first, stop) exist."""
    if not 0 <= first <= stop <= len(refs) // _REF.size:
        raise ValueError("there are no such references")


def extent(refs: bytes) -> tuple[int, int]:
    """Return the lowest and the highest position of packed references. Raises ValueError if there are none."""
    _require_refs(refs, 0, 1)
    positions = [ref[0] for ref in _REF.iter_unpack(refs)]
    return min(positions), max(positions)


def count_within(refs: bytes, max_bytes: int) -> int:
    """Count the packed references, from the first on, of which the records fit into `max_bytes` together.

    The first record counts even if it is larger.
    """
    size = 0
    for index, (_, length, _, _) in enumerate(_REF.iter_unpack(refs)):
        size += length
        if size > max_bytes and index:
            return index
    return len(refs) // _REF.size


def read_span(refs: bytes, first: int, end: int, gap: int, most: int) -> tuple[int, int, int]:
    """Plan one read of the log, from the record of the packed reference `first` on.

    The read includes the records of the next references while they follow in the log. There may be `gap` bytes between
    two records and `most` bytes in the read, and each record begins before `end`. Returns (index of the first
    reference that is not included, begin of the read, end of the read). Raises ValueError if there is no such
    reference.
    """
    _require_refs(refs, first, first + 1)
    begin, length, _, _ = _REF.unpack_from(refs, first * _REF.size)
    reached = begin + length
    for index in range(first + 1, len(refs) // _REF.size):
        position, length, _, _ = _REF.unpack_from(refs, index * _REF.size)
        behind = position + length
        if not reached <= position <= reached + gap or position >= end or behind - begin > most:
            return index, begin, reached
        reached = behind
    return len(refs) // _REF.size, begin, reached


def find_tags(refs: bytes, tags: Iterable[int]) -> list[int]:
    """Return the indexes of the packed references that have one of these tags, and of all that name an ordering key.

    The tag of a message that names an ordering key does not tell its topic (see `tag_of`). Raises ValueError if the
    last reference is not whole.
    """
    wanted = frozenset(tags)
    return [index for index, tag in enumerate(unpack_refs(refs)[3]) if tag & NAMES_KEY or tag in wanted]


def find_positions(refs: bytes, positions: Iterable[int]) -> list[int]:
    """Return the indexes of the packed references of the records at these positions. Raises ValueError if the last
    reference is not whole."""
    wanted = frozenset(positions)
    return [index for index, position in enumerate(unpack_refs(refs)[0]) if position in wanted]
