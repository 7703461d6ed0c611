"""What a node hears of a commit: which topics grew, and to where."""

from store.api import Commit


class TopicEvents:
    """The topic events of one commit. An event is a hint: losing it delays a message, never loses it.

    In process the records themselves ride along (`commit`), so a reader that is at the end needs no
    fetch; what would travel to a remote node is `ends`.
    """

    __slots__ = ("_ends", "commit")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self._ends: dict[bytes, int] | None = None

    @property
    def ends(self) -> dict[bytes, int]:
        """Topic → offset behind its last message of this commit; merged: one event per topic."""
        if self._ends is None:
            commit = self.commit
            ends = {topic: offset + 1 for topic, offset in zip(commit.topics, commit.topic_offsets, strict=True)}
            for moved in commit.moved:
                ends[moved.topic] = max(ends.get(moved.topic, 0), moved.topic_offset + 1)
            self._ends = ends
        return self._ends
