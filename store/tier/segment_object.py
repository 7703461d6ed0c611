"""The format of a segment object: the bytes of a segment in blocks, each compressed by itself, and an index.

    blocks      one behind the other; all have `BLOCK` bytes of the segment but the last one
    index       for each block: compressed bytes u32, CRC-32 of its uncompressed bytes u32
    trailer     base u64, end u64, bytes of a block u32, blocks u32, CRC-32 of the index and the trailer before it
                u32, version u8, 3 zeros, mark "SLUICESO"

All numbers are little-endian. The object has the positions [base, end); the rest of the segment is zeros. So a position
alone tells the block, and the index where it is: a reader needs the end of the object and the blocks that it wants.
"""

import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Final

from store.tier.codec import BlockDamaged, Codec

BLOCK: Final = 1 << 20  # bytes of a segment; docs/decisions/0044-tiered-storage.md says why so many
VERSION: Final = 1
_MARK: Final = b"SLUICESO"
_TRAILER: Final = Struct("<QQIIIB3x8s")
_BEFORE_CHECKSUM: Final = 24  # bytes of the trailer before its checksum
_ENTRY: Final = 8  # bytes of the index for a block


class ObjectDamaged(Exception):
    """The bytes are not those of a segment object."""


@dataclass(slots=True, frozen=True)
class SegmentIndex:
    """Where the blocks of a segment object are."""

    base: int
    end: int  # position
    block: int  # bytes of a block but the last one
    starts: "array[int]"  # of each block in the object, and where the last one ends
    checksums: "array[int]"

    def size_of(self, number: int) -> int:
        """Uncompressed bytes of a block."""
        return min(self.block, self.end - self.base - number * self.block)

    def open_block(self, number: int, data: bytes, codec: Codec) -> bytes:
        """Restore a block from its bytes in the object. Raises `ObjectDamaged`."""
        size = self.size_of(number)
        try:
            found = codec.decompress(data, size)
        except BlockDamaged as error:
            raise ObjectDamaged(f"block {number}: {error}") from None
        if len(found) != size or zlib.crc32(found) != self.checksums[number]:
            raise ObjectDamaged(f"block {number} has other bytes than were written")
        return found


def pack_object(
    base: int, end: int, read: Callable[[int, int], bytes], codec: Codec, block: int = BLOCK
) -> Iterator[bytes]:
    """Yield the object of a segment that begins at `base`, in pieces.

    end: position behind its last record. read: returns so many bytes of the segment from an offset on.
    """
    lengths, checksums = array("I"), array("I")
    for offset in range(0, end - base, block):
        content = read(min(block, end - base - offset), offset)
        data = codec.compress(content)
        lengths.append(len(data))
        checksums.append(zlib.crc32(content))
        yield data
    numbers = [number for entry in zip(lengths, checksums, strict=True) for number in entry]
    index = b"".join(number.to_bytes(4, "little") for number in numbers)
    head = _TRAILER.pack(base, end, block, len(lengths), 0, VERSION, _MARK)
    checksum = zlib.crc32(head[:_BEFORE_CHECKSUM], zlib.crc32(index))
    yield index + _TRAILER.pack(base, end, block, len(lengths), checksum, VERSION, _MARK)


def index_size(length: int, block: int = BLOCK) -> int:
    """Bytes of the index and the trailer of an object with `length` bytes of a segment."""
    return -(-length // block) * _ENTRY + _TRAILER.size


def unpack_index(tail: bytes, size: int) -> SegmentIndex | int:
    """Decode the index from the last bytes of an object of `size` bytes.

    Returns how many of the last bytes are needed if `tail` is too short. Raises `ObjectDamaged`.
    """
    if len(tail) < _TRAILER.size:
        raise ObjectDamaged(f"it has only {len(tail)} bytes")
    fields: tuple[int, int, int, int, int, int, bytes] = _TRAILER.unpack(tail[-_TRAILER.size :])
    base, end, block, count, checksum, version, mark = fields
    if mark != _MARK or version != VERSION:
        raise ObjectDamaged("it is not a segment object of this version")
    needed = count * _ENTRY + _TRAILER.size
    if needed > size or end < base or block < 1 or count != -(-(end - base) // block):
        raise ObjectDamaged("its trailer has other numbers than were written")
    if needed > len(tail):
        return needed
    index = tail[len(tail) - needed : -_TRAILER.size]
    if zlib.crc32(tail[-_TRAILER.size :][:_BEFORE_CHECKSUM], zlib.crc32(index)) != checksum:
        raise ObjectDamaged("its index has other bytes than were written")
    numbers = [int.from_bytes(index[at : at + 4], "little") for at in range(0, len(index), 4)]
    starts = array("Q", accumulate(numbers[::2], initial=0))
    if starts[-1] + needed != size:
        raise ObjectDamaged(f"it has {size} bytes, and its index says {starts[-1] + needed}")
    return SegmentIndex(base, end, block, starts, array("I", numbers[1::2]))
