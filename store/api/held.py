"""Held messages: those that wait for their time, or for the end of their transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class HeldMessage:
    """A message that is in the log and in no queue yet: delayed until a time, or until its transaction ends."""

    handle: int  # position of its record; a name for it also when the record is gone
    topic: bytes
    publisher: bytes
    due_ms: int | None  # None: as soon as its transaction is committed
    rounds: int  # how often its publisher was asked what became of the transaction


@dataclass(slots=True)
class HeldPage:
    """Held messages in order; `after` is to be passed to get the next page, None at the end."""

    messages: list[HeldMessage]
    after: bytes | None


TransactionListener = Callable[[Sequence[HeldMessage]], None]


class HeldStore(Protocol):
    """Held messages."""

    def may_hold(self) -> bool:
        """Whether there is room for one more message that waits for its time or its transaction. Asked before an
        append, so that what is on its way may go beyond the limit."""

    async def timers(self, after: bytes | None, limit: int) -> HeldPage:
        """Up to `limit` (at least 1) messages that wait for their time, the next first, behind `after`."""

    async def recall(self, handles: Sequence[int]) -> list[int]:
        """Drop messages that wait for their time. Returns once that is committed, with the handles of those that do
        not (any more): the others are never delivered. Raises `StoreError`; some may have been dropped then."""

    async def end_transaction(self, handles: Sequence[int], commit: bool) -> list[int]:
        """Have messages that wait for the end of their transaction enter their queues, in this order (or wait for
        their time, if they are delayed as well), or drop them. Returns once that is committed, with the handles of
        those that do not wait for it (any more). Raises `StoreError`; the transaction of some may have ended then."""

    def on_transaction_check(self, listener: TransactionListener) -> None:
        """Call `listener` with messages whose transaction should have ended, for it to ask their publishers and call
        `end_transaction`. Called again for those that still wait, some times, after which they are rolled back."""
