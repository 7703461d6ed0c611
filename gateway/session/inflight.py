"""A message that was sent to a client with a packet id, and the phase of its exchange."""

from typing import Final

from gateway.session.cursor import Cursor

SENT: Final = 0  # PUBLISH is out (or staged), PUBACK or PUBREC is awaited
RELEASED: Final = 1  # PUBREC came, PUBCOMP is awaited
COMPLETED: Final = 2  # over, but the cursor has not passed it: its packet id stays in use
WAITING: Final = 3  # from an earlier connection, to be sent again once there is room
RESERVED: Final = 4  # it has a packet id, and waits for a record before it is sent


class Inflight:
    """A message with a packet id. `offset` is in the cursor's queue, or a log position without a cursor."""

    __slots__ = (
        "cursor",
        "leased",
        "offset",
        "phase",
        "qos",
        "recorded",
        "released",
        "topic_filter",
        "waits_for_record",
    )

    def __init__(self, cursor: Cursor | None, topic_filter: bytes, offset: int, qos: int) -> None:
        self.cursor = cursor
        self.topic_filter = topic_filter  # b"": no queue, the offset is a log position
        self.offset = offset
        self.qos = qos
        self.phase = SENT
        # A durable session records the packet id before it sends: QoS 2, or not the packet id that the cursor gives.
        self.waits_for_record: bool = qos == 2
        self.recorded = False  # the log knows of this packet id
        self.released = False  # PUBREC came on an earlier connection
        self.leased = False  # from a shared subscription: the session has it for this connection only

    def acknowledged(self) -> bool:
        """The exchange is over. Returns whether the cursor's place has to be recorded at once."""
        return self.cursor is not None and self.cursor.ack(self.offset)


class StagedMessage:
    """A message that waits for a record: of its own packet id (QoS 2, durable session), or of one before it."""

    __slots__ = ("data", "entry", "packet_id")

    def __init__(self, packet_id: int, entry: Inflight | None, data: bytes) -> None:
        self.packet_id = packet_id
        self.entry = entry  # None: there is nothing to record
        self.data = data
