"""The settings of the connection between a store and its gateways, with all its bounds."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class RemoteConfig:
    """Settings of both sides; comments name those of one side. Raises ValueError for a value out of range."""

    window_bytes: int = 32 << 20  # sent and not acknowledged
    max_pending_bytes: int = 32 << 20  # gateway: appended and not answered; the last eighth is for control records
    max_outbox_bytes: int = 16 << 20  # store: waiting to be sent to a gateway; it gets no commits beyond them
    max_calls: int = 1024  # open calls of a gateway
    max_bulk_reads: int = 8  # open bulk reads of a gateway, of some MiB each
    max_copy_lag: int = 64 << 20  # bytes that a copy may be behind what a gateway knows of the log, to be read
    max_gateways: int = 256  # store: attached gateways, and those that may still come back
    heartbeat_s: float = 1.0  # an idle side sends a heartbeat this often
    silence_s: float = 5.0  # a stream without a message for this time is broken
    grace_s: float = 30.0  # time for a gateway, or the store, to come back
    longest_pause_s: float = 1.0  # gateway: between two attempts to reach the store

    def __post_init__(self) -> None:
        sizes = ("window_bytes", "max_pending_bytes", "max_outbox_bytes")
        for name in (*sizes, "max_calls", "max_bulk_reads", "max_copy_lag", "max_gateways"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 < self.heartbeat_s < self.silence_s:
            raise ValueError("heartbeat_s must be more than 0 and less than silence_s")
        if self.grace_s < 0 or self.longest_pause_s <= 0:
            raise ValueError("grace_s must not be negative, and longest_pause_s more than 0")
