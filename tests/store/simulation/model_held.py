"""The part of the model that is about messages that are held: until a time, or until their transaction ends."""

from dataclasses import dataclass

from msgspec.structs import astuple

import record
from record.layout import FLAG_DELAYED, FLAG_HALF, Kind
from store import control


@dataclass(slots=True)
class HeldFrame:
    """A message that is in the log and in no queue."""

    frame: bytes
    is_half: bool  # waits for its transaction, else for its time
    due: int | None  # ms
    check: int  # ms: when it came, then when to ask (again) what became of the transaction
    rounds: int = 0  # how often was asked


class Held:
    """Held messages by handle."""

    def __init__(self) -> None:
        self.messages: dict[int, HeldFrame] = {}

    def hold(self, frame: bytes, handle: int, time: int) -> None:
        flags = record.decode(frame, 0)[1]
        due = record.trailer_of(frame, 0) if flags & FLAG_DELAYED else None
        self.messages[handle] = HeldFrame(frame, bool(flags & FLAG_HALF), due, time)

    def drop(self, handle: int) -> bool:
        """Whether the message was held."""
        return self.messages.pop(handle, None) is not None

    def fold(self, kind: Kind, payload: bytes) -> list[bytes]:
        """The frames that enter their queues now, in order."""
        entering: list[bytes] = []
        if kind == Kind.TIMERS_FIRED:
            for handle in control.TimersFired.parse(payload).handles:
                if self._waits(handle, half=False):
                    entering.append(self.messages.pop(handle).frame)
        elif kind == Kind.TIMERS_RECALLED:
            for handle in control.TimersFired.parse(payload).handles:
                if self._waits(handle, half=False):
                    del self.messages[handle]
        elif kind == Kind.TRANSACTIONS_ENDED:
            committed, rolled_back = astuple(control.TransactionsEnded.parse(payload))
            for handle in committed:
                if self._waits(handle, half=True):
                    if self.messages[handle].due is None:
                        entering.append(self.messages.pop(handle).frame)
                    else:
                        self.messages[handle].is_half = False
            for handle in rolled_back:
                if self._waits(handle, half=True):
                    del self.messages[handle]
        else:
            next_check, handles = astuple(control.TransactionsChecked.parse(payload))
            for handle in handles:
                if self._waits(handle, half=True):
                    self.messages[handle].check = next_check
                    self.messages[handle].rounds += 1
        return entering

    def _waits(self, handle: int, *, half: bool) -> bool:
        return handle in self.messages and self.messages[handle].is_half == half
