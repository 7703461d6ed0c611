"""What can be set about the way between a store and its gateways. All bounds are here."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class RemoteConfig:
    """Both sides have one; what only one of them reads says so. Raises ValueError for a value out of range."""

    window_bytes: int = 32 << 20  # sent and not known to have arrived
    max_pending_bytes: int = 32 << 20  # gateway: appended and not answered; the last eighth is for control records
    max_outbox_bytes: int = 16 << 20  # store: waiting to be sent to a gateway, beyond which it is told of no commits
    max_calls: int = 1024  # of a gateway, under way
    max_gateways: int = 256  # store: attached, or gone for less than the grace time
    heartbeat_s: float = 1.0  # a side that has nothing to say says so this often
    silence_s: float = 5.0  # after which the other side is taken for gone, and the stream for broken
    grace_s: float = 30.0  # for a gateway, or the store, to come back
    longest_pause_s: float = 1.0  # gateway: between two attempts to reach the store

    def __post_init__(self) -> None:
        for name in ("window_bytes", "max_pending_bytes", "max_outbox_bytes", "max_calls", "max_gateways"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 < self.heartbeat_s < self.silence_s:
            raise ValueError("heartbeat_s must be more than 0 and less than silence_s")
        if self.grace_s < 0 or self.longest_pause_s <= 0:
            raise ValueError("grace_s must not be negative, and longest_pause_s more than 0")
