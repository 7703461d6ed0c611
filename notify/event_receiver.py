"""The events that a gateway in another process gets, made into commits again: none twice, and none missed silently."""

from notify.wire import decode_event
from store.api import Commit


class EventReceiver:
    """Makes commits, in log order, of events that may be lost, late, repeated or out of order.

    `position` is the end of the log as far as the gateway knows it. A range of the log whose events are lost comes as a
    commit without messages, with `missed_from`: the store has to be asked for it."""

    __slots__ = ("gaps", "position")

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.gaps = 0

    def commits_of(self, body: bytes) -> list[Commit]:
        """The commits that an event makes known. Raises ValueError if it is malformed."""
        event = decode_event(body)
        commit = event.commit
        if commit.end <= self.position:
            return [] if event.since <= self.position else self.advance(event.since)
        if event.since < self.position:
            return self.advance(commit.end)  # a part of it is known, and nothing says which
        commits = self.advance(event.since)
        self.position = commit.end
        commits.append(commit)  # also if nothing in it concerns the gateway: listeners need to know the log's end
        return commits

    def advance(self, position: int) -> list[Commit]:
        """The log has come to `position`, and no event told of what is new in it."""
        if position <= self.position:
            return []
        gap = Commit(b"", position, 0)
        gap.missed_from = self.position
        self.position = position
        self.gaps += 1
        return [gap]
