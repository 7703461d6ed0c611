"""The target of a rule, and what both kinds share."""

from abc import ABCMeta, abstractmethod
from time import time
from typing import Final

from mypy_extensions import mypyc_attr

from gateway.events.compiled_rule import Output
from gateway.events.event import Event

MAX_HELD: Final = 8 << 20  # bytes of outputs that are on their way; one output may be larger


class Figures:
    """What a rule has done since this process began to run it."""

    __slots__ = ("delivered", "error", "error_ms", "failed", "matched", "refused", "unmatched")

    def __init__(self) -> None:
        self.matched = 0
        self.unmatched = 0
        self.delivered = 0
        self.failed = 0  # deliveries; an event may fail several times
        self.refused = 0  # events that can never be delivered
        self.error = ""  # the last one
        self.error_ms = 0

    def note_error(self, text: str) -> None:
        self.error, self.error_ms = text, int(time() * 1000)


@mypyc_attr(allow_interpreted_subclasses=True)
class Target(metaclass=ABCMeta):
    """The target of one rule."""

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms  # within which it sends an event

    @property
    @abstractmethod
    def room(self) -> int:
        """How many events may be taken now."""

    @property
    @abstractmethod
    def room_bytes(self) -> int:
        """How many bytes of outputs may be sent now. The first output may have more."""

    @abstractmethod
    def add(self, queue: bytes, offset: int, deliveries: int, event: Event, output: Output) -> int:
        """Add an event to those that are sent next. Returns the bytes that wait for the target because of it.

        queue, offset: where it was read. deliveries: how often. Raises `EvaluationFailed`."""

    @abstractmethod
    def send(self) -> None:
        """Send the events that were added, and settle each when its outcome is known."""

    @abstractmethod
    def stop(self) -> None:
        """Send no more. What is on its way is settled as not sent."""
