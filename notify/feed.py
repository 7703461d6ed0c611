"""The commits that one gateway in another process is told of. Runs in the store's process.

The rules of the file:

* An event is a hint: losing one delays a message and never loses it. Every event says which range of the log it tells
  of, so a gateway that missed one knows, and asks the store.
* Memory is bounded: while too much waits to be sent, nothing is sent. The range of the next event shows the gap.
* Whatever an answer or an outcome speaks of was sent before it, or the gateway knows that it missed it (`send_end`).
"""

from collections.abc import Callable, Sequence
from typing import Final

import record
from matcher.names import parent_of
from notify.interest import Interest
from notify.wire import encode_event, encode_range, has_rest
from record.layout import FLAG_ADDRESSED
from store.api import Commit, Moved

LARGE: Final = 64 << 10  # bytes: a longer message is not part of its event, and is read when there is room for it


class Feed:
    """The events of one gateway, from `position` of the log on. `has_room` says whether it takes more."""

    __slots__ = ("_has_room", "_interest", "_parents", "_routed", "_seen", "_send", "_since", "_told")

    def __init__(
        self, position: int, routed: bool, has_room: Callable[[], bool], send: Callable[[bytes], None]
    ) -> None:
        self._routed = routed  # once the gateway has named filters, it gets only what matches them
        self._interest: Interest | None = None  # None: it gets everything
        self._parents: set[bytes] = set()  # parent topics of which it is told that they have new messages
        self._has_room = has_room
        self._send = send
        self._since = position  # where the range of the next event begins
        self._seen = position  # the log's end
        self._told = position  # the log's end as the gateway knows it

    def send_commit(self, commit: Commit) -> None:
        """Send what concerns the gateway in a commit."""
        self._seen = commit.end
        if not self._has_room():
            self.drop_commit(commit)
            return
        chosen, moved = self._concerning(commit)
        parents = self._entered(commit) if self._parents else []
        if not chosen and not moved and not parents and not has_rest(commit):
            return
        small, large = _by_size(commit, chosen)
        self._send(encode_event(self._since, commit, small, [*moved, *large], parents))
        self._since = self._told = commit.end

    def drop_commit(self, commit: Commit) -> None:
        """Do not send a commit. The range of the next event tells the gateway that it missed one."""
        self._since = self._seen = commit.end

    def send_end(self) -> None:
        """Send the log's end, unless the gateway knows it: it is about to hear of something that may rest on it."""
        if self._told != self._seen:
            self._send(encode_range(self._since, self._seen))
            self._since = self._told = self._seen

    def watch(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Change the filters of a routed gateway, from the next commit on."""
        if self._routed:
            if self._interest is None:
                self._interest = Interest()
            self._interest.change(added, removed)

    def watch_parents(self, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Change the parent topics of which the gateway is told, from the next commit on."""
        self._parents.difference_update(removed)
        self._parents.update(added)

    def _entered(self, commit: Commit) -> list[bytes]:
        """The watched parent topics that have new messages."""
        found = {parent_of(topic) for topic in {*commit.topics, *[each.topic for each in commit.moved]}}
        return list(found & self._parents)

    def _concerning(self, commit: Commit) -> tuple[Sequence[int], list[Moved]]:
        interest = self._interest
        if interest is None:
            return range(len(commit.topics)), commit.moved
        moved = [each for each in commit.moved if each.flags & FLAG_ADDRESSED or interest.wants(each.topic)]
        return interest.chosen(commit.topics, commit.flags), moved


def _by_size(commit: Commit, chosen: Sequence[int]) -> tuple[Sequence[int], list[Moved]]:
    """The messages that are part of the event, and those that are too long for that."""
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
