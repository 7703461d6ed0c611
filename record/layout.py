"""The frame: what each byte of a record means, and the kinds and flags of records.

All integers are little-endian. A frame is `HEADER_SIZE` bytes of header, then topic, publisher,
properties and payload, back to back. Frames follow each other without padding.

====== ==== ==================================================================================
offset size field
====== ==== ==================================================================================
0      u32  CRC-32C of bytes [4, length) of this frame
4      u32  length of the whole frame in bytes, header included
8      u16  magic `MAGIC`
10     u8   version of the layout, `VERSION`
11     u8   kind, a `Kind`
12     u32  epoch of the writer
16     u64  position: byte offset of this frame in the log
24     u64  store time, milliseconds since 1970-01-01 UTC
32     u16  flags, `FLAG_*`
34     u16  topic length
36     u16  publisher length (client id in UTF-8)
38     u16  packet id of the PUBLISH (QoS 2 from a durable session), else 0
40     u32  properties length
44     u32  undurable: position minus the position up to which the log was durable at the write
48     …    topic, publisher, properties, payload
====== ==== ==================================================================================

An *unsealed* frame (as a front hands it to `Store.append`, or the SDK to `Produce`) has CRC, epoch,
position, store time and undurable 0; the log's writer fills them in when it seals the batch.

`undurable` is how recovery tells a torn tail from damage: a sound frame at `p` proves that everything
before `p - undurable` had reached the disk, so whatever is broken there was broken later.

`properties` is an MQTT 5 property block without its length prefix (MQTT-2.2.2), holding only what
travels with an application message: payload format, message expiry, content type, response topic,
correlation data, user properties. Control records carry JSON in the payload, and their subject (client
id or group) in the topic field.

With `FLAG_DELAYED` or `FLAG_REVIVED` the last 8 bytes of the frame are a number (u64) behind the payload, which is not
part of it: when the message is due in ms, and which held message it stands in for. No frame has `FLAG_REVIVED` and one
of `FLAG_HELD`.
"""

from enum import IntEnum
from typing import Final

MAGIC: Final = 0x4C53  # b"SL" on disk
VERSION: Final = 1
HEADER_SIZE: Final = 48
TRAILER_SIZE: Final = 8

FLAG_QOS: Final = 0x0003  # the publisher's QoS, 0..2
FLAG_RETAIN: Final = 0x0004  # RETAIN was set by the publisher: also the topic's retained value
FLAG_TRACK_ID: Final = 0x0008  # QoS 2 from a durable session: the packet id is session state
FLAG_DELAYED: Final = 0x0010  # held until its due time, which ends the frame
FLAG_HALF: Final = 0x0020  # held until its transaction ends
FLAG_REVIVED: Final = 0x0040  # a copy of a held message whose own record is gone; its handle ends the frame
FLAG_ADDRESSED: Final = 0x0080  # to the inbox of one client: its session, if there is a durable one, gets it unasked
FLAG_WILL: Final = 0x0100  # the will of the publisher, which has none from here on
FLAG_HELD: Final = FLAG_DELAYED | FLAG_HALF  # in no queue yet

# What readers may do without: bits, of the parts behind the header.
PART_TOPIC: Final = 0x1
PART_PUBLISHER: Final = 0x2
PART_PROPERTIES: Final = 0x4
PART_PAYLOAD: Final = 0x8

REFERENCE: Final = 24  # bytes of a packed reference
MAX_TOPIC: Final = 0xFFFF
MAX_KEYS: Final = 16  # of one message (user properties `key`) by which it can be found
MAX_KEY: Final = 255  # bytes; it cannot be found by a longer one
MAX_FRAME: Final = 0x2000_0000  # 512 MiB: beyond it a length is damage, not a record


class Kind(IntEnum):
    """What a record is."""

    MESSAGE = 1
    SESSION_OPENED = 2
    SESSION_CLOSED = 3
    SESSION_LOST = 4
    SESSION_ENDED = 5
    SUBSCRIBED = 6
    UNSUBSCRIBED = 7
    CURSORS_COMMITTED = 8
    INBOUND_RELEASED = 9
    OUTBOUND_CHANGED = 10
    RETAINED_SENT = 11
    WILL_SET = 12
    WILL_DROPPED = 13
    TIMERS_FIRED = 14
    TIMERS_RECALLED = 15
    TRANSACTIONS_ENDED = 16
    TRANSACTIONS_CHECKED = 17
    GROUP_OFFSETS_COMMITTED = 18
    POPPED = 19
    SETTLED = 20
    DEAD_LETTERED = 21
    GROUP_RESET = 22
    GROUP_REMOVED = 23
    SHARE_JOINED = 24
    SHARE_LEFT = 25
    SHARE_HANDED_OVER = 26
    USER_SET = 27
    USER_REMOVED = 28
    RULES_SET = 29
    PRODUCED = 30
    PRODUCER_ENDED = 31
    GATEWAY_JOINED = 32
    GATEWAY_LEFT = 33
