"""Messages of another system that a source has handed over, and that are not stored yet."""

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from connect.api import SourceRecord

Receipt = TypeVar("Receipt")


class Unacknowledged(Generic[Receipt]):
    """What the other system wants to hear of each message, in the order in which records were handed over."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[SourceRecord, list[Receipt]]] = deque()

    def add(self, record: SourceRecord, receipt: Receipt) -> None:
        self._waiting.append((record, [receipt]))

    def skip(self, receipt: Receipt) -> bool:
        """Note a message that no record was made of. Its receipt comes with that of the message before it. Returns
        False if none is waiting: then it is for the caller to answer at once."""
        if not self._waiting:
            return False
        self._waiting[-1][1].append(receipt)
        return True

    def take(self, records: Sequence[SourceRecord]) -> list[Receipt]:
        """The receipts of records that are stored, and of those before them: transforms may have left these out.

        Records of before `clear` have none.
        """
        stored = {id(record) for record in records}
        count = max((at for at, (record, _) in enumerate(self._waiting, 1) if id(record) in stored), default=0)
        return [receipt for _ in range(count) for receipt in self._waiting.popleft()[1]]

    def clear(self) -> None:
        """Forget all of them: their connection is gone, and the other system sends them again."""
        self._waiting.clear()
