"""What one cloud service may ask of a node. Reaching a limit is a gRPC status, never a growing queue."""

from dataclasses import dataclass, fields
from typing import Final

RECORDS_PER_LEASE: Final = 0x1_0000  # a record's lease id is its lease's base plus its index, 16 bits


@dataclass(slots=True, frozen=True)
class RpcLimits:
    """Bounds of the gRPC front. Sizes in bytes, times in milliseconds."""

    max_request_bytes: int = 16 << 20  # one gRPC message from a client
    max_request_records: int = 16_384  # in one Produce request
    max_message_bytes: int = 8 << 20  # one record's frame in Produce
    max_unacknowledged_requests: int = 64  # per Produce stream; beyond it the stream is not read
    max_unacknowledged_bytes: int = 32 << 20
    max_fetch_records: int = 16_384  # per Pull or Receive
    max_fetch_bytes: int = 4 << 20
    max_wait_ms: int = 60_000
    max_names: int = 10_000  # per page of Topics or Children
    max_concurrent_calls: int = 10_000  # of all kinds, long polls included
    max_groups: int = 4_096  # (group, parent) pairs held in memory
    max_group_name: int = 255
    max_leases: int = 65_536  # messages that one group has out at a time, and leases in one Acknowledge
    max_window: int = 131_072  # offsets of a partition between the committed one and the next to lease
    max_invisible_ms: int = 12 * 3_600_000

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise ValueError(f"{each.name} must be positive")
        if self.max_fetch_records > RECORDS_PER_LEASE:
            raise ValueError(f"max_fetch_records is at most {RECORDS_PER_LEASE}")
