"""The frame: what each byte of a record means, and the kinds and flags of records.

All integers are little-endian. A frame is `HEADER_SIZE` bytes of header, then topic, publisher, properties and
payload, back to back. Frames follow each other without padding.

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
44     u32  undurable: position minus the position up to which the log was on disk when this was written
48     …    topic, publisher, properties, payload
====== ==== ==================================================================================

In an *unsealed* frame, CRC, epoch, position, store time and undurable are 0. A gateway passes such frames to
`Store.append`, and the SDK to `Produce`. The log's writer fills these fields in when it seals the batch.

`undurable` lets recovery tell a torn tail from damage. A valid frame at `p` proves that everything before
`p - undurable` was on disk once. So invalid bytes there were damaged later.

`properties` is an MQTT 5 property block without its length (MQTT 5.0 section 2.2.2). It has only the properties that
belong to an application message: payload format, message expiry, content type, response topic, correlation data and
user properties. A control record has a MessagePack map as its payload, and its subject (a client id, a group) as its
topic.

With `FLAG_DELAYED` or `FLAG_REVIVED` the last 8 bytes of the frame are a trailer (u64). It is not part of the payload.
It is the due time of the message in ms, or the handle of the held message that this one stands in for. No frame has
`FLAG_REVIVED` together with a flag of `FLAG_HELD`.
"""

from enum import IntEnum
from typing import Final

MAGIC: Final = 0x4C53  # b"SL" on disk
VERSION: Final = 1
HEADER_SIZE: Final = 48
TRAILER_SIZE: Final = 8

FLAG_QOS: Final = 0x0003  # the publisher's QoS, 0..2
FLAG_RETAIN: Final = 0x0004  # the publisher set RETAIN: it is also the topic's retained value
FLAG_TRACK_ID: Final = 0x0008  # QoS 2 from a durable session: the packet id is session state
FLAG_DELAYED: Final = 0x0010  # held until its due time, which is the trailer
FLAG_HALF: Final = 0x0020  # held until its transaction ends
FLAG_REVIVED: Final = 0x0040  # a copy of a held message whose record is gone; the trailer is its handle
FLAG_ADDRESSED: Final = 0x0080  # to a client's inbox: a durable session of the client gets it without subscribing
FLAG_WILL: Final = 0x0100  # the publisher's will: with this record the will is sent and removed
FLAG_HELD: Final = FLAG_DELAYED | FLAG_HALF  # not in a queue yet

# The parts behind the header that a reader may leave out: bits.
PART_TOPIC: Final = 0x1
PART_PUBLISHER: Final = 0x2
PART_PROPERTIES: Final = 0x4
PART_PAYLOAD: Final = 0x8

REFERENCE: Final = 24  # bytes of a packed reference
NAMES_KEY: Final = 0x8000_0000  # in a tag: it is that of the ordering key that the message names, not of its topic
MAX_TOPIC: Final = 0xFFFF
MAX_KEYS: Final = 16  # of one message: user properties `key` by which it can be found
MAX_KEY: Final = 255  # bytes; a message cannot be found by a longer key
MAX_FRAME: Final = 0x2000_0000  # 512 MiB: a larger length is damage


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
    LOG_TRIMMED = 34
    TOPIC_PARTITIONS = 35
    SEGMENT_UPLOADED = 36
    USER_CHANGED = 37
    ROLE_SET = 38
    ROLE_REMOVED = 39
    BAN_SET = 40
    BAN_ENDED = 41
    GROUP_PAUSED = 42
    GROUP_RESUMED = 43
    ACCESS_REQUESTED = 44
    ACCESS_DECIDED = 45
    EVENT_RULE_SET = 46
    EVENT_RULE_REMOVED = 47
    ENTRY_PUT = 48
    ENTRY_REMOVED = 49
