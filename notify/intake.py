"""What a gateway in another process hears of commits, made whole: nothing twice, nothing missed without a word."""

from notify.wire import decode_event
from store.api import Commit


class Intake:
    """Commits in log order out of events that may be lost, late, doubled or out of order. `heard` is the log position
    up to which the gateway has been told; what was missed comes as a commit without messages that says so, and is to
    be read from the store."""

    __slots__ = ("gaps", "heard")

    def __init__(self, heard: int = 0) -> None:
        self.heard = heard
        self.gaps = 0

    def take(self, body: bytes) -> list[Commit]:
        """The commits to tell of, by an event as it came. Raises ValueError for what is none."""
        event = decode_event(body)
        commit = event.commit
        if commit.end <= self.heard:
            return [] if event.since <= self.heard else self.reach(event.since)
        if event.since < self.heard:
            return self.reach(commit.end)  # part of it is known, which part is not to be told apart
        commits = self.reach(event.since)
        self.heard = commit.end
        commits.append(commit)  # also where nothing in the range concerns us: who listens is to know how far he is told
        return commits

    def reach(self, position: int) -> list[Commit]:
        """The log has come to `position`, and there was no word of what is new in it."""
        if position <= self.heard:
            return []
        gap = Commit(b"", position, 0)
        gap.missed_from = self.heard
        self.heard = position
        self.gaps += 1
        return [gap]
