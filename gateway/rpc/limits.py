"""Limits of the gRPC services. A call beyond a limit ends with a status."""

from dataclasses import dataclass, fields

from gateway.mqtt.properties import MAX_USER_PROPERTIES
from matcher.names import MAX_LENGTH, MAX_LEVELS


@dataclass(slots=True, frozen=True)
class RpcLimits:
    """Limits of the gRPC services. Sizes are in bytes, times in milliseconds."""

    max_request_bytes: int = 16 << 20  # one gRPC message from a client
    max_request_records: int = 16_384  # in one Produce request
    max_message_bytes: int = 8 << 20  # one record's frame in Produce
    max_user_properties: int = MAX_USER_PROPERTIES  # of one message
    max_topic_length: int = MAX_LENGTH  # bytes of a topic that is published to
    max_topic_levels: int = MAX_LEVELS
    max_unacknowledged_requests: int = 64  # per Produce stream; beyond it the stream is not read
    max_unacknowledged_bytes: int = 32 << 20
    max_fetch_records: int = 16_384  # per Pull or Receive
    max_fetch_bytes: int = 4 << 20  # of records per Pull or Receive
    max_reply_bytes: int = 1 << 20  # of records per Pull with payloads: gRPC packs and sends a reply on the loop
    fetch_bytes: int = 256 << 10  # of records per Pull whose client names no number
    max_unread_bytes: int = 64 << 20  # of unread replies per connection; beyond it, large calls are refused
    max_wait_ms: int = 60_000
    max_names: int = 10_000  # per page of Topics or Children
    max_concurrent_calls: int = 10_000  # of all kinds, long polls included
    max_group_name: int = 255
    max_settled: int = 65_536  # messages in one Acknowledge
    max_handles: int = 65_536  # messages in one Recall or EndTransaction
    max_trace_bytes: int = 16 << 20  # of the log that one Trace reads
    max_groups: int = 1_000  # per page of Groups; a page also ends after as many queues
    max_entries: int = 100_000  # of all buckets
    max_entry_bytes: int = 1 << 30  # of all of them together
    max_entry_page: int = 1_000  # per page of Entries or BucketChanges
    max_invisible_ms: int = 12 * 3_600_000  # of a lease or an extension, and the longest delay of a redelivery

    def fault_of_topic(self, topic: bytes) -> str | None:
        """Why a valid topic may not be published to; None: it is within the limits."""
        if len(topic) > self.max_topic_length:
            return f"the topic has {len(topic)} bytes, the limit is {self.max_topic_length}"
        levels = topic.count(b"/") + 1
        if levels > self.max_topic_levels:
            return f"the topic has {levels} levels, the limit is {self.max_topic_levels}"
        return None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0 and field.name != "max_user_properties":
                raise ValueError(f"{field.name} must be positive")
