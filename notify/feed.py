"""What one gateway in another process is told of commits. Lives in the store's process.

The rules of the file:

* An event is a hint: losing one delays a message, never loses it. Every event says of which range of the log it tells,
  so a gateway that missed something knows, and asks the store.
* Memory is bounded: while too much waits to be sent, nothing is told; the next event says so by its range.
* What an answer or an outcome speaks of was told before, or is known to be missed (`told`).
"""

from collections.abc import Callable, Sequence
from typing import Final

import record
from notify.interest import Interest
from notify.wire import encode_event, encode_range, has_rest
from record.layout import FLAG_ADDRESSED
from store.api import Commit, Moved

LARGE: Final = 64 << 10  # a message that is longer does not ride along: it is read when there is room for it


class Feed:
    """The events of one gateway, from `position` of the log on. `has_room` says whether it takes more."""

    __slots__ = ("_has_room", "_interest", "_routed", "_seen", "_send", "_since", "_told", "dropped")

    def __init__(
        self, position: int, routed: bool, has_room: Callable[[], bool], send: Callable[[bytes], None]
    ) -> None:
        self._routed = routed  # it wants only what it watches, from when it says so first
        self._interest: Interest | None = None  # None: it wants everything
        self._has_room = has_room
        self._send = send
        self._since = position  # the next event tells of the log from here on
        self._seen = position  # the log's end
        self._told = position  # the same, as the gateway knows it
        self.dropped = 0  # commits that were not told of

    def take(self, commit: Commit) -> None:
        """Tell of a commit what concerns the gateway."""
        self._seen = commit.end
        if not self._has_room():
            self.lose(commit)
            return
        chosen, moved = self._concerning(commit)
        if not chosen and not moved and not has_rest(commit):
            return
        small, large = _by_size(commit, chosen)
        self._send(encode_event(self._since, commit, small, [*moved, *large]))
        self._since = self._told = commit.end

    def lose(self, commit: Commit) -> None:
        """Do not tell of a commit: the gateway will know that it missed it."""
        self._since = self._seen = commit.end
        self.dropped += 1

    def tell(self) -> None:
        """Have the gateway know of the log up to its end, before it hears what may speak of that."""
        if self._told != self._seen:
            self._send(encode_range(self._since, self._seen))
            self._since = self._told = self._seen

    def watch(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """From the next commit on the gateway wants what matches other filters."""
        if self._routed:
            if self._interest is None:
                self._interest = Interest()
            self._interest.change(added, removed)

    def _concerning(self, commit: Commit) -> tuple[Sequence[int], list[Moved]]:
        interest = self._interest
        if interest is None:
            return range(len(commit.topics)), commit.moved
        moved = [each for each in commit.moved if each.flags & FLAG_ADDRESSED or interest.wants(each.topic)]
        return interest.chosen(commit.topics, commit.flags), moved


def _by_size(commit: Commit, chosen: Sequence[int]) -> tuple[Sequence[int], list[Moved]]:
    """The messages that ride along, and those that are too long for that."""
    data, starts = commit.data, commit.starts
    if len(data) <= LARGE:
        return chosen, []
    small: list[int] = []
    large: list[Moved] = []
    for i in chosen:
        length = record.length_of(data, starts[i])
        if length <= LARGE:
            small.append(i)
            continue
        filters = commit.filter_offsets[i] if commit.filter_offsets is not None else ()
        position = commit.position + starts[i]
        large.append(Moved(position, length, commit.topics[i], commit.flags[i], commit.topic_offsets[i], filters))
    return small, large
