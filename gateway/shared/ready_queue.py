"""Members of a group in the order of their turns, of which the next is found that takes a message.

Those whose clients take packets of any size stand in one row. The others stand in rows of the same *form* (what a
message becomes for them) and the same maximum packet size: a message is measured once for each form, whoever many
members have it.
"""

from bisect import bisect_left
from collections import OrderedDict
from typing import Final

from gateway.session.message_encoding import Message
from gateway.shared.member import ANY_SIZE, Member

_Row = OrderedDict[Member, int]  # members with their turns, the first that waits in front
_NO_TURN: Final = 1 << 62


class _Rows:
    """The members of one form: a row for each maximum packet size, by size."""

    __slots__ = ("maxima", "rows", "turns")

    def __init__(self) -> None:
        self.maxima: list[int] = []  # ascending
        self.rows: list[_Row] = []  # none is empty
        self.turns: list[int] = []  # of the first of each row

    def add(self, member: Member, turn: int) -> None:
        at = bisect_left(self.maxima, member.maximum)
        if at == len(self.maxima) or self.maxima[at] != member.maximum:
            self.maxima.insert(at, member.maximum)
            self.rows.insert(at, OrderedDict())
            self.turns.insert(at, turn)
        self.rows[at][member] = turn

    def remove(self, member: Member) -> None:
        at = bisect_left(self.maxima, member.maximum)
        row = self.rows[at]
        del row[member]
        if row:
            self.turns[at] = row[next(iter(row))]
        else:
            del self.maxima[at], self.rows[at], self.turns[at]

    def turn(self, message: Message | None, now_ms: int) -> int:
        """That of the first who takes the message; `_NO_TURN`: nobody does."""
        turns = self.turns
        if message is not None:
            size = next(iter(self.rows[0])).size_of(message, now_ms)
            at = bisect_left(self.maxima, size)
            if at:
                turns = turns[at:]
        return min(turns) if turns else _NO_TURN

    def whose(self, turn: int) -> Member:
        return next(iter(self.rows[self.turns.index(turn)]))


class Line:
    """Members in the order of their turns. What a member takes does not change while it stands here."""

    __slots__ = ("_open", "_rows", "_turn")

    def __init__(self) -> None:
        self._open: _Row = OrderedDict()  # those that take packets of any size
        self._rows: dict[int, _Rows] = {}  # by form; none is empty
        self._turn = 0  # the last

    @property
    def is_empty(self) -> bool:
        return not self._open and not self._rows

    def add(self, member: Member) -> None:
        """Its turn is behind that of all others."""
        self._turn += 1
        if member.form == ANY_SIZE:
            self._open[member] = self._turn
            return
        rows = self._rows.get(member.form)
        if rows is None:
            rows = self._rows[member.form] = _Rows()
        rows.add(member, self._turn)

    def remove(self, member: Member) -> None:
        """Raises KeyError for who does not stand here."""
        if member.form == ANY_SIZE:
            del self._open[member]
            return
        rows = self._rows[member.form]
        rows.remove(member)
        if not rows.rows:
            del self._rows[member.form]

    def to_end(self, member: Member) -> None:
        """It had its turn."""
        if member.form == ANY_SIZE:
            self._turn += 1
            self._open[member] = self._turn
            self._open.move_to_end(member)
        else:
            self.remove(member)
            self.add(member)

    def first(self, message: Message | None = None, now_ms: int = 0) -> Member | None:
        """Whose turn it is, of those who take the message; None: nobody does."""
        found: Member | None = None
        turn = _NO_TURN
        if self._open:
            found = next(iter(self._open))
            if not self._rows:
                return found
            turn = self._open[found]
        for rows in self._rows.values():
            earliest = rows.turn(message, now_ms)
            if earliest < turn:
                turn = earliest
                found = rows.whose(turn)
        return found

    def room(self, most: int) -> int:
        """Messages that they have room for, as far as it needs to be known: `most`, or a little more."""
        room = 0
        for row in [self._open, *[row for rows in self._rows.values() for row in rows.rows]]:
            for member in row:
                room += member.room
                if room >= most:
                    return room
        return room
