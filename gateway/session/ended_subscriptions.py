"""Subscriptions of a session that are no more, or have QoS 0 now, while others may be behind them.

A message that several subscriptions match is sent by the oldest, and the others go past it. When that one ends, a
younger one may be behind what it sent: in what it has read, or in what the log knows of that, which is where it goes on
after a crash. So it is remembered what came by the old one, in the log too, until no younger one is behind any of it.
"""

from collections.abc import Collection, Iterable

from gateway.session.cursor import Cursor
from gateway.session.message_encoding import Message
from gateway.session.subscription import Subscription
from matcher.cover import Shape
from matcher.names import is_shared, matches
from matcher.reserved import filter_of
from store.api import Ended, SessionState, subscription_queue


class Former:
    """What came by a subscription that ended. `gateway.delivery.ended_subscriptions` finds out
    what that means for those that are left."""

    __slots__ = (
        "_first",
        "_left",
        "_positions",
        "_shape",
        "_time",
        "ended",
        "for_log",
        "is_known",
        "queue",
        "recorded",
    )

    def __init__(self, ended: Ended, recorded: bool) -> None:
        self.ended = ended
        self.queue: bytes = subscription_queue(ended.topic_filter)
        self.recorded = recorded  # the log knows, or is about to know
        self.for_log: bool = False  # what has no cursor is behind as well
        self.is_known: bool = False
        self._shape = Shape(ended.topic_filter)
        self._time: int = 0  # when the last that came by it entered its queue
        self._positions: set[int] = set()  # of what entered at that time, or was sent out of turn
        self._first: dict[Cursor, int] = {}  # a younger cursor → offset of the first that entered then, or later
        self._left: dict[Cursor, int] = {}  # a younger cursor → offset behind all of it

    def concerns(self, cursor: Cursor, shape: Shape) -> bool:
        """Whether the cursor, whose filter has this shape, is of a younger subscription that may match the same
        messages."""
        ended = self.ended
        own, its = (ended.start_position, ended.topic_filter), (cursor.start_position, cursor.topic_filter)
        return own < its and self._shape.overlaps(shape)

    def may_concern(self, coming: Iterable[Shape]) -> bool:
        """The same of subscriptions that have no cursor yet: of these filters."""
        return any(self._shape.overlaps(each) for each in coming)

    def know(self, time: int, positions: set[int], first: dict[Cursor, int], left: dict[Cursor, int]) -> None:
        """All that came by it entered before `time`, or is at one of the positions. For each younger cursor: the offset
        in its queue of the first that entered at that time or later, and one behind all of it."""
        self._time, self._positions, self._first, self._left = time, positions, first, left
        self.is_known = True

    def had(self, cursor: Cursor, offset: int, message: Message) -> bool:
        """Whether the message at this offset of the cursor's queue came by the subscription that ended."""
        first = self._first.get(cursor, -1)
        if first < 0:
            return False
        if message.position in self._positions:
            return True
        return offset < first and matches(self.ended.topic_filter, message.topic)

    def had_entry(self, position: int, store_time: int, message: Message) -> bool:
        """The same for a message that the record at `position` let into its queues."""
        if message.position in self._positions:
            return True
        is_before = self.ended.start_position <= position and store_time < self._time
        return is_before and matches(self.ended.topic_filter, message.topic)

    def is_done(self, cursors: set[Cursor], is_closing: bool) -> bool:
        """Whether none of these cursors, which are all there are, will come by any of it again. `is_closing`: the log
        is about to know of all that they have read."""
        if not self.is_known:
            return False
        for cursor, end in self._left.items():
            place = cursor.next if is_closing or cursor.fleeting else cursor.durable
            if place < end and cursor in cursors:
                return False
        return True


def shapes_of(coming: Iterable[bytes]) -> list[Shape]:
    """Of the filters among these names of subscriptions whose records are on their way, or are there."""
    return [Shape(name) for name in coming if not filter_of(name)]


def former_of(
    subscription: Subscription, others: Iterable[tuple[Subscription, Shape]], coming: Iterable[Shape], is_behind: bool
) -> Former | None:
    """What has to be remembered of a subscription whose cursor sends no more, for these others, and for those that are
    `coming`. `is_behind`: those of them that have no cursor are."""
    cursor = subscription.cursor
    if cursor is None:
        return None
    waiting = sorted([offset for offset in cursor.open if offset >= cursor.next])
    former = Former(Ended(cursor.topic_filter, cursor.start_position, cursor.next, waiting), False)
    for other, shape in others:
        if other is subscription:
            continue
        if other.cursor is not None:
            # One that the log does not know sent nothing that others do: what it went past is theirs, again too.
            former.recorded = former.recorded or (not cursor.fleeting and former.concerns(other.cursor, shape))
        elif is_behind:
            former.for_log = former.for_log or former.may_concern((shape,))
    former.recorded = former.recorded or (not cursor.fleeting and former.may_concern(coming))
    return former if former.recorded or former.for_log else None


def ended_of(state: SessionState, filters: Collection[bytes]) -> list[Ended]:
    """The same of a session that nobody has: these subscriptions of it are to end."""
    own = [each for each in state.subscriptions if each.qos and not is_shared(each.topic_filter)]
    left = [
        ((each.start_position, each.topic_filter), Shape(each.topic_filter))
        for each in own
        if each.topic_filter not in filters
    ]
    found: list[Ended] = []
    for old in own:
        if old.topic_filter not in filters:
            continue
        age, shape = (old.start_position, old.topic_filter), Shape(old.topic_filter)
        if any(its > age and shape.overlaps(other) for its, other in left):
            sent = [o.offset for o in state.outbound if o.topic_filter == old.topic_filter and o.offset >= old.offset]
            found.append(Ended(old.topic_filter, old.start_position, old.offset, sorted(sent)))
    return found
