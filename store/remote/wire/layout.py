"""The layout of the messages of a link between a store and a gateway. Integers are little-endian.
Each message is the body of a frame (`store.remote.wire.frames`).

A message begins with its number (u64) and that of the last message that arrived from the other side (u64); items
follow, each with its kind (u8) and length (u32) in front. Number 0 has no items. The first message of a stream is a
greeting in each direction instead, in MessagePack.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

import msgspec

from store.api import Redelivery

VERSION: Final = 1  # of this layout and of the items
# A digest of all structs that travel, which a test compares with them: it differs between builds of one version, too.
LAYOUT: Final = "9e9c23fde53ff109"

HEAD: Final = Struct("<QQ")
ITEM: Final = Struct("<BI")
NUMBER: Final = Struct("<I")
SEQUENCE: Final = Struct("<Q")
OUTCOME: Final = Struct("<QQQ")  # sequence, store time, position of the first record if the records are adjacent
APART: Final = 0xFFFF_FFFF_FFFF_FFFF  # the records are not adjacent; the position of each (u64) follows


class Item(IntEnum):
    """The kind of an item. Kinds below 16 go to the store."""

    APPEND = 1  # sequence u64, unsealed frames
    CALL = 2  # number u32, method u8, arguments in MessagePack
    CANCEL = 3  # number u32
    WATCH = 4  # number u32; in MessagePack added filters, removed filters, added and removed parent topics
    LEAVE = 5  # the gateway stops and does not come back
    ASKED = 6  # half messages whose publishers are asked about the transaction: their handles in MessagePack
    NODE = 7  # the gateway's `NodeFacts`, when they have changed
    OUTCOME = 16  # see `outcome_of`
    ANSWER = 17  # number u32, result in MessagePack
    FAULT = 18  # number u32, error in MessagePack
    EVENT = 19  # a commit, see `notify.wire`
    CHECK = 20  # half messages whose transactions are to be checked, in MessagePack
    STATS = 21  # `store.api.StoreStats` in MessagePack
    KNOWN = 23  # number u32 of a WATCH that is in effect from here on
    REFUSED = 22  # sequence u64, error in MessagePack
    NODES = 24  # the `NodeFacts` of all attached gateways, each once, in MessagePack


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """The common part of the first messages of all versions."""

    version: int
    layout: object = ""


_decode_greeting: Final = msgspec.msgpack.Decoder(Greeting).decode


class NodeFacts(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What a gateway tells of its node. Others hear of it, and tell clients. An empty address: there is none."""

    store: str = ""  # where other nodes of a cluster reach the node's store
    services: str = ""  # where cloud services reach the gateway
    devices: str = ""  # where devices are sent: a Server Reference of MQTT 5
    weight: int = 1  # how many clients the node should have, compared with others
    is_drained: bool = False  # clients are to go to other nodes


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """A gateway's greeting. `producer` identifies its process."""

    version: int
    layout: str
    producer: bytes
    gateway: str
    opening: str  # of the log that it was attached to last; empty: none yet
    log_end: int  # the log's end, as far as the gateway knows it
    received: int  # last message that arrived
    routed: bool  # it gets only commits that match its filters; otherwise all commits
    behind: int  # position before the records of all its appends that were not answered; -1: there are none
    node: NodeFacts = NodeFacts()


class Verdict(IntEnum):
    """The store's answer to a greeting."""

    CONTINUES = 0  # both sides continue the link
    STARTS = 1  # both sides start a new link
    REFUSED = 2  # not now; the gateway may ask again
    GIVEN_UP = 3  # the store serves this process of the gateway no more
    ELSEWHERE = 4  # this node does not lead: `leader` says which one does


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The store's greeting."""

    version: int
    layout: str
    verdict: Verdict
    reason: str  # of REFUSED, GIVEN_UP and ELSEWHERE
    opening: str  # of the log
    received: int  # last message that arrived, with CONTINUES
    sequence: int  # the gateway's last append that the log has as a whole, with STARTS; those up to it are answered
    max_pending: int  # bytes of one append
    partitions: int  # of a parent topic without a number of its own
    parent_partitions: dict[bytes, int]  # of those with one
    max_record: int  # bytes
    max_wait_ms: int
    log_end: int
    redelivery: Redelivery
    leader: str = ""  # address of the store that leads, with ELSEWHERE; empty: not known


def refusal(message: bytes) -> str:
    """Why the sender of this first message cannot be served: its version or its layout differs. Empty if it can be
    served.

    Raises msgspec.MsgspecError if the message is not a greeting.
    """
    greeting = _decode_greeting(message)
    if greeting.version != VERSION:
        return f"it speaks version {greeting.version} of the protocol, and this side version {VERSION}"
    if greeting.layout != LAYOUT:
        both = f"layout {str(greeting.layout)[:20]}, and this side layout {LAYOUT}"
        return f"its messages have {both}: install the same build of Sluice on both sides"
    return ""


def outcome_of(sequence: int, store_time: int, positions: Sequence[int], spread: int) -> bytes:
    """The answer to a committed parcel. `spread` is the distance in bytes from the first to the last record in the
    parcel; -1: it is not known."""
    first = positions[0] if positions else 0
    if spread >= 0 and (not positions or positions[-1] - first == spread):
        return OUTCOME.pack(sequence, store_time, first)
    return OUTCOME.pack(sequence, store_time, APART) + b"".join(p.to_bytes(8, "little") for p in positions)


def items(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, body) of each item. Raises ValueError for a malformed message."""
    at, end = HEAD.size, len(message)
    while at < end:
        if at + ITEM.size > end:
            raise ValueError("an item has no room for its head")
        kind, length = ITEM.unpack_from(message, at)
        at += ITEM.size
        if at + length > end:
            raise ValueError("an item is longer than its message")
        yield kind, message[at : at + length]
        at += length
