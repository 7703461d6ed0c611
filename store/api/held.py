"""Held messages: they wait for their due time, or for the end of their transaction."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class HeldMessage:
    """A message that is in the log and in no queue yet: it waits for its due time or the end of its transaction."""

    handle: int  # position of its record; it stays the same when retention has removed the record
    topic: bytes
    publisher: bytes
    due_ms: int | None  # None: as soon as its transaction is committed
    rounds: int  # how often its publisher was asked about the transaction
    is_orphan: bool = False  # its publisher could not be asked the last time: another one may be


@dataclass(slots=True)
class HeldPage:
    """Held messages in order. Pass `after` to get the next page; None: this is the last one."""

    messages: list[HeldMessage]
    after: bytes | None


# Half messages → the handles of those whose own publisher is asked; None: that is not known yet.
TransactionListener = Callable[[Sequence[HeldMessage]], Collection[int] | None]


class HeldStore(Protocol):
    """Held messages."""

    def may_hold(self) -> bool:
        """Whether the limit leaves room for one more held message. Messages whose append is under way do not count, so
        that they may go beyond the limit."""

    async def timers(self, after: bytes | None, limit: int) -> HeldPage:
        """Up to `limit` (at least 1) delayed messages from after `after` on, those that are due next first."""

    async def recall(self, handles: Sequence[int]) -> list[int]:
        """Drop delayed messages, so that they are never delivered.

        Returns when that is committed, with the handles that are not of delayed messages (any more). Raises
        `StoreError`; some messages may have been dropped then.
        """

    async def end_transaction(self, handles: Sequence[int], commit: bool) -> list[int]:
        """End the transaction of half messages: enter them into their queues, in this order, or drop them.

        A committed message that is also delayed waits for its due time next. Returns when that is committed, with the
        handles that are not of half messages (any more). Raises `StoreError`; some transactions may have ended then.
        """

    def on_transaction_check(self, listener: TransactionListener) -> None:
        """Call `listener` with messages whose transaction should have ended. It asks those of their publishers that it
        has, and returns which; in place of the publisher of an orphan it may ask another one. Who is asked calls
        `end_transaction`. The listener is called several times for a message, which is rolled back after that."""
