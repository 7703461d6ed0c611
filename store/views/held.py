"""The held view: delayed messages and half messages. They are in the log and in no queue yet.

The handle of a message is the position of its record. Row `h` has what releasing the message needs, so that the fold
never reads the log. `d` orders delayed messages by their due time, `c` half messages by the time of their next check.
Before retention removes the record, `b` gets the sealed frame: the message is then *kept*, and a copy of it enters
the queues.

A message that is both delayed and half waits for its transaction first. The methods that fold control records are
named after these (see `store.control`). A record changes nothing for a handle that is not in the state it ends.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Final

import record
from record.layout import FLAG_DELAYED, FLAG_HALF
from store.api import HeldMessage, HeldPage
from store.control import TimersFired, TimersRecalled, TransactionsChecked, TransactionsEnded
from store.views.database.count import Count
from store.views.database.keeping import Page
from store.views.database.state import State

HELD: Final = b"h"  # handle → row
KEPT: Final = b"b"  # handle → sealed frame
_DUE: Final = b"d"
_NEW: Final = b"c\0"  # halves without a check so far, by store time: the time of the first check is a setting
_ASKED: Final = b"c\1"  # all other halves, by the time of the next check

# flags, marks, length, tag, due, check, rounds, key digests, topic length; digests, topic and publisher follow
_ROW: Final = Struct(">HBIIQQIBH")
_DIGEST: Final = 8  # bytes
_NO_PAYLOAD: Final = 1  # marks
_IS_KEPT: Final = 2
_NAME: Final = Struct(">QQ")
_LAST: Final = 0xFFFF_FFFF_FFFF_FFFF
_HALVES: Final = b"c"  # table of `_NEW` and `_ASKED`, by which their number is kept
_BEHIND_ALL: Final = b"\xff" * 17  # sorts after every name


class HeldRow:
    """A message that is held."""

    __slots__ = (
        "check",
        "digests",
        "due",
        "flags",
        "frame",
        "handle",
        "length",
        "marks",
        "publisher",
        "rounds",
        "tag",
        "topic",
    )

    def __init__(self, handle: int, row: bytes) -> None:
        self.handle = handle
        self.frame: bytes | None = None  # of a kept message that was released
        self.flags: int  # without FLAG_HALF once its transaction is committed
        self.marks: int
        self.length: int  # of its record
        self.tag: int  # of its references
        self.due: int  # ms; 0 without FLAG_DELAYED
        self.check: int  # ms, of a half: its store time before the first check, then the time of the next check
        self.rounds: int  # number of checks
        head = _ROW.unpack_from(row)
        (self.flags, self.marks, self.length, self.tag, self.due, self.check, self.rounds, keys, size) = head
        topic = _ROW.size + keys * _DIGEST
        self.digests = [row[at : at + _DIGEST] for at in range(_ROW.size, topic, _DIGEST)]  # of its keys
        self.topic = row[topic : topic + size]
        self.publisher = row[topic + size :]

    @property
    def is_half(self) -> bool:
        """Whether it waits for its transaction."""
        return bool(self.flags & FLAG_HALF)

    @property
    def is_delayed(self) -> bool:
        return bool(self.flags & FLAG_DELAYED)

    @property
    def has_payload(self) -> bool:
        return not self.marks & _NO_PAYLOAD

    @property
    def is_kept(self) -> bool:
        return bool(self.marks & _IS_KEPT)

    def packed(self) -> bytes:
        sizes = len(self.digests), len(self.topic)
        head = _ROW.pack(self.flags, self.marks, self.length, self.tag, self.due, self.check, self.rounds, *sizes)
        return b"".join((head, *self.digests, self.topic, self.publisher))

    def message(self) -> HeldMessage:
        due = self.due if self.is_delayed else None
        return HeldMessage(self.handle, self.topic, self.publisher, due, self.rounds)


class Earlier:
    """A flag: a message was added that is due before all others of its order. The reader resets it."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = True


class Order:
    """Handles ordered by a time.

    It remembers the first name that may exist. Removed rows leave tombstones in RocksDB, and a scan from the beginning
    would step over them each time.
    """

    __slots__ = ("_earlier", "_from", "_state", "_table")

    def __init__(self, state: State, table: bytes, earlier: Earlier) -> None:
        self._state = state
        self._table = table
        self._from = b""
        self._earlier = earlier

    def add(self, time: int, handle: int) -> None:
        name = _NAME.pack(time, handle)
        self._state.put(self._table, name, b"")
        if name < self._from:
            self._from = name
            self._earlier.is_set = True

    def remove(self, time: int, handle: int) -> None:
        self._state.delete(self._table, _NAME.pack(time, handle))

    def first(self) -> int | None:
        """The earliest time."""
        if self._from == _BEHIND_ALL:
            return None
        for name, _ in self._state.scan(self._table, self._from):
            self._from = name
            return int.from_bytes(name[:8], "big")
        self._from = _BEHIND_ALL
        return None

    def until(self, time: int, limit: int) -> list[int]:
        """Up to `limit` handles with a time up to `time`, in order."""
        if time < 0 or limit == 0 or self._from == _BEHIND_ALL:
            return []
        last = _NAME.pack(min(time, _LAST), _LAST)
        handles: list[int] = []
        begin = _BEHIND_ALL
        for name, _ in self._state.scan(self._table, self._from):
            begin = min(begin, name)
            if name > last or len(handles) == limit:
                break
            handles.append(_NAME.unpack(name)[1])
        self._from = begin
        return handles

    def page(self, after: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` names from after `after` on."""
        return [name for name, _ in islice(self._state.scan(self._table, after=after), limit)]


class Held:
    """Held messages by handle, and in three orders: delayed ones, halves without a check, and checked halves."""

    __slots__ = ("_state", "asked", "begin", "count", "due", "earlier", "halves", "kept_below", "new")

    def __init__(self, state: State, begin: int) -> None:
        """begin: where the first segment with a file begins."""
        self._state = state
        self.count = Count(state, HELD)
        self.halves = Count(state, _HALVES)  # of these, those that wait for their transaction
        self.earlier = Earlier()
        self.due = Order(state, _DUE, self.earlier)
        self.new = Order(state, _NEW, self.earlier)
        self.asked = Order(state, _ASKED, self.earlier)
        self.begin = begin  # of the files: all messages before it are kept
        self.kept_below = begin  # only messages before this position may be kept

    def add(self, data: bytes, start: int, digests: Sequence[bytes]) -> None:
        """Add the message whose sealed frame is at `start`. `digests` are those of its keys."""
        _, flags, _, topic, publisher, properties, payload = record.decode(data, start)
        handle = record.position_of(data, start)
        due = record.trailer_of(data, start) if flags & FLAG_DELAYED else 0
        check = record.store_time_of(data, start)
        marks = 0 if payload else _NO_PAYLOAD
        sizes = len(digests), len(topic)
        tag = record.tag_of(topic, properties)
        head = _ROW.pack(flags, marks, record.length_of(data, start), tag, due, check, 0, *sizes)
        self._state.put(HELD, _handle_name(handle), b"".join((head, *digests, topic, publisher)))
        self.count.change(1)
        if flags & FLAG_HALF:
            self.halves.change(1)
            self.new.add(check, handle)
        else:
            self.due.add(due, handle)

    def fold(self, event: TimersFired | TimersRecalled | TransactionsEnded | TransactionsChecked) -> list[HeldRow]:
        """Fold a control record. Returns the messages that now enter their queues, in order."""
        if isinstance(event, TransactionsEnded):
            return self._ended(event)
        if isinstance(event, TransactionsChecked):
            self._checked(event)
            return []
        rows = [self._released(row) for row in self._waiting(event.handles, False)]
        return rows if isinstance(event, TimersFired) else []

    def revived(self, handle: int) -> bool:
        """Release a message whose copy is in the log. Returns whether it was held: if so, the copy enters queues."""
        row = self.find(handle)
        if row is not None:
            self._released(row)
        return row is not None

    def find(self, handle: int) -> HeldRow | None:
        """The row of a handle; None if no message with it is held."""
        if not 0 <= handle <= _LAST:
            return None
        row = self._state.get(HELD, _handle_name(handle))
        return None if row is None else HeldRow(handle, row)

    def waits(self, handle: int, half: bool) -> bool:
        """Whether a held message waits for its transaction (`half`), or for its due time."""
        row = self.find(handle)
        return row is not None and row.is_half == half

    def kept(self, handle: int) -> bytes | None:
        """The sealed frame of a kept message whose copy is to enter the queues.

        None where the record still exists, and for a half message that is delayed: its commit enters no queue.
        """
        if handle >= self.kept_below:
            return None
        row = self.find(handle)
        if row is None or not row.is_kept or (row.is_half and row.is_delayed):
            return None
        return self._state.get(KEPT, _handle_name(handle))

    def to_keep(self, below: int, after: bytes | None, limit: int) -> Page:
        """A page of the messages before `below`. The caller keeps all of them."""
        self.kept_below = max(self.kept_below, below)
        page = Page()
        last = _handle_name(below)
        for name, value in islice(self._state.scan(HELD, _handle_name(self.begin), after), limit):
            if name >= last:
                page.after = None
                break
            page.after = name
            row = HeldRow(int.from_bytes(name, "big"), value)
            if not row.is_kept:
                page.rows.append((name, row.handle, row.length))
        return page

    def records(self, log: range, after: bytes | None, limit: int) -> Page:
        """A page of up to `limit` messages whose records are in the range `log`."""
        page = Page()
        last = _handle_name(log.stop)
        for name, value in islice(self._state.scan(HELD, _handle_name(log.start), after), limit):
            if name >= last:
                page.after = None
                break
            page.after = name
            row = HeldRow(int.from_bytes(name, "big"), value)
            page.rows.append((name, row.handle, row.length))
        return page

    def keep(self, name: bytes, frame: bytes) -> None:
        """Keep a message's frame if the message is still held. Its state may have changed meanwhile."""
        row = self.find(int.from_bytes(name, "big"))
        if row is not None:
            row.marks |= _IS_KEPT
            self._put(row)
            self._state.put(KEPT, name, frame)

    def timers(self, after: bytes | None, limit: int) -> HeldPage:
        """Up to `limit` delayed messages in order of their due times, from after `after` on."""
        names = self.due.page(after, limit)
        return HeldPage(self._messages(names), names[-1] if names and len(names) == limit else None)

    def transactions(self, after: bytes | None, limit: int) -> HeldPage:
        """Up to `limit` half messages from after `after` on: first those without a check, then by next check."""
        stage, behind = (b"n", after) if after is None else (after[:1], after[1:] or None)
        names: list[bytes] = []
        if stage == b"n":
            names = self.new.page(behind, limit)
            if names and len(names) == limit:
                return HeldPage(self._messages(names), b"n" + names[-1])
            behind = None
        others = self.asked.page(behind, limit - len(names))
        is_last = not others or len(names) + len(others) < limit
        return HeldPage(self._messages(names + others), None if is_last else b"a" + others[-1])

    def _messages(self, names: list[bytes]) -> list[HeldMessage]:
        rows = [self.find(_NAME.unpack(name)[1]) for name in names]
        return [row.message() for row in rows if row is not None]

    def _waiting(self, handles: Iterable[int], half: bool) -> Iterator[HeldRow]:
        """The held messages of these handles that wait for their transaction (`half`), or for their due time."""
        for handle in handles:
            row = self.find(handle)
            if row is not None and row.is_half == half:
                yield row

    def _ended(self, event: TransactionsEnded) -> list[HeldRow]:
        entering: list[HeldRow] = []
        for row in self._waiting(event.committed, True):
            if row.is_delayed:
                self._order(row).remove(row.check, row.handle)
                self.halves.change(-1)
                row.flags &= ~FLAG_HALF
                self._put(row)
                self.due.add(row.due, row.handle)
            else:
                entering.append(self._released(row))
        for row in self._waiting(event.rolled_back, True):
            self._released(row)
        return entering

    def _checked(self, event: TransactionsChecked) -> None:
        for row in self._waiting(event.handles, True):
            self._order(row).remove(row.check, row.handle)
            row.check = event.next_check_ms
            row.rounds += 1
            self._put(row)
            self.asked.add(row.check, row.handle)

    def _released(self, row: HeldRow) -> HeldRow:
        """Delete the rows of a message that is no longer held."""
        name = _handle_name(row.handle)
        if row.is_half:
            self._order(row).remove(row.check, row.handle)
            self.halves.change(-1)
        else:
            self.due.remove(row.due, row.handle)
        self._state.delete(HELD, name)
        self.count.change(-1)
        if row.is_kept:
            row.frame = self._state.get(KEPT, name)
            self._state.delete(KEPT, name)
        return row

    def _order(self, half: HeldRow) -> Order:
        return self.asked if half.rounds else self.new

    def _put(self, row: HeldRow) -> None:
        self._state.put(HELD, _handle_name(row.handle), row.packed())


def without_copy(row: bytes) -> bytes:
    """The row of a held message as it is without a copy of its record."""
    held = HeldRow(0, row)
    held.marks &= ~_IS_KEPT
    return held.packed()


def _handle_name(handle: int) -> bytes:
    return handle.to_bytes(8, "big")
