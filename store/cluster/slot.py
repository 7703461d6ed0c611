"""A slot of the shared log as bytes.

All integers are little-endian. A slot is `HEADER_SIZE` bytes of header, then the body.

====== ==== ==================================================================================
offset size field
====== ==== ==================================================================================
0      4    magic `SLOT`
4      u32  CRC-32C of all bytes that follow
8      u8   version of the layout, 1
9      u8   kind, a `SlotKind`
10     u16  0
12     u32  epoch of the leader that wrote it
16     u64  number of the slot
24     u64  position: where the log ended before this slot, or where its batch begins
32     u32  CRC-32C of the slot before it, as in that slot's header; 0 in slot 1
36     u32  length of the body in bytes
40     …    body
====== ==== ==================================================================================

The body of FOUNDED, CLAIMED and HANDED_OVER is a map in MessagePack: `Founded`, `LeaderClaim`, `HandedOver`. The body
of BATCH is one sealed batch of frames, byte for byte what a segment has. The body of IDLE is empty.

Since each slot names the checksum of the one before it, slots of two different pasts never follow each other unnoticed.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

import msgspec

import record
from store.cluster.shared_log import SharedLogDamaged

VERSION: Final = 1
_MAGIC: Final = b"SLOT"
_FIELDS: Final = struct.Struct("<BBHIQQII")  # what follows the checksum
_CHECKED: Final = 8  # where the bytes begin that the checksum is of
HEADER_SIZE: Final = _CHECKED + _FIELDS.size

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class SlotKind(IntEnum):
    """What a slot says."""

    FOUNDED = 1  # the log begins; slot 1 only
    CLAIMED = 2  # a node leads from here on
    BATCH = 3  # records
    IDLE = 4  # the leader lives
    HANDED_OVER = 5  # the leader leads no more


class Founded(msgspec.Struct, frozen=True):
    """What all nodes of a log agree on, as in `store.json`."""

    log_id: _Name
    segment_size: _Count
    partitions: _Count
    generation_segments: _Count


class LeaderClaim(msgspec.Struct, frozen=True):
    """Who leads."""

    node: _Name
    address: str  # where gateways reach it
    opening: _Name  # random name of the time that this node's process opened the log
    site: str = ""  # where the node is: nodes of other sites do not claim by themselves


class HandedOver(msgspec.Struct, frozen=True):
    """Whom the leader wants to lead next."""

    to: _Name


Content = Founded | LeaderClaim | HandedOver | None
_DECODERS: Final[dict[SlotKind, Callable[[bytes], Content]]] = {
    SlotKind.FOUNDED: msgspec.msgpack.Decoder(Founded).decode,
    SlotKind.CLAIMED: msgspec.msgpack.Decoder(LeaderClaim).decode,
    SlotKind.HANDED_OVER: msgspec.msgpack.Decoder(HandedOver).decode,
}
_KINDS: Final = {Founded: SlotKind.FOUNDED, LeaderClaim: SlotKind.CLAIMED, HandedOver: SlotKind.HANDED_OVER}


@dataclass(slots=True, frozen=True)
class Slot:
    """A slot and its bytes (`data`)."""

    number: int
    kind: SlotKind
    epoch: int
    position: int
    previous: int  # checksum of the slot before it
    checksum: int
    content: Content  # of a FOUNDED, CLAIMED or HANDED_OVER slot
    batch: bytes  # of a BATCH slot
    data: bytes


def build_slot(number: int, epoch: int, position: int, previous: int, content: Content, batch: bytes) -> Slot:
    """The slot that says `content`, or holds `batch`; with neither it is IDLE."""
    if content is not None:
        kind, body = _KINDS[type(content)], msgspec.msgpack.encode(content)
    else:
        kind, body = SlotKind.BATCH if batch else SlotKind.IDLE, batch
    checked = _FIELDS.pack(VERSION, kind, 0, epoch, number, position, previous, len(body)) + body
    checksum = record.crc32c(checked)
    data = b"".join((_MAGIC, checksum.to_bytes(4, "little"), checked))
    return Slot(number, kind, epoch, position, previous, checksum, content, batch, data)


def parse_slot(number: int, data: bytes) -> Slot:
    """Parse what the engine has as slot `number`. Raises `SharedLogDamaged` if that is no slot, or another one."""
    if len(data) < HEADER_SIZE or data[:4] != _MAGIC:
        raise SharedLogDamaged(f"slot {number} of the shared log is no slot")
    checksum = int.from_bytes(data[4:_CHECKED], "little")
    if record.crc32c(data[_CHECKED:]) != checksum:
        raise SharedLogDamaged(f"slot {number} of the shared log has a wrong checksum")
    version, kind_number, zero, epoch, own_number, position, previous, length = _FIELDS.unpack_from(data, _CHECKED)
    if version != VERSION:
        raise SharedLogDamaged(f"slot {number} of the shared log has version {version}, which this node cannot read")
    if own_number != number:
        raise SharedLogDamaged(f"the shared log has slot {own_number} as slot {number}")
    body = data[HEADER_SIZE:]
    try:
        kind = SlotKind(kind_number)
        content = _DECODERS[kind](body) if kind in _DECODERS else None
        if zero or length != len(body) or (content is None and bool(body) != (kind == SlotKind.BATCH)):
            raise ValueError("its header and its body do not fit")
    except (ValueError, msgspec.DecodeError) as error:
        raise SharedLogDamaged(f"slot {number} of the shared log is malformed: {error}") from None
    return Slot(
        number, kind, epoch, position, previous, checksum, content, body if kind == SlotKind.BATCH else b"", data
    )
