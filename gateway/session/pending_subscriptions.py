"""Filters that were granted to a session and are no subscriptions yet: their records are not committed.

A client need not wait for SUBACK. So what was granted is kept for each SUBSCRIBE: a later one with the same filter
changes the subscription again, and UNSUBSCRIBE ends what was granted before it, but not what is granted after it.
"""

from collections.abc import Collection, Iterable


class PendingSubscribe:
    """What one SUBSCRIBE was granted and is still wanted."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: set[bytes] = set()


class PendingSubscriptions:
    """That of all SUBSCRIBEs of a session that are not done."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[bytes, list[PendingSubscribe]] = {}  # by name, oldest first

    @property
    def names(self) -> Collection[bytes]:
        """Filters, and names of replays (`matcher.reserved.replay_name`)."""
        return self._of.keys()

    def add(self, granted: PendingSubscribe, names: Iterable[bytes]) -> None:
        """A SUBSCRIBE is granted these."""
        for name in names:
            if name not in granted.names:
                granted.names.add(name)
                self._of.setdefault(name, []).append(granted)

    def end(self, names: Iterable[bytes]) -> set[bytes]:
        """These are not wanted any more. Returns those that were."""
        ended: set[bytes] = set()
        for name in names:
            for granted in self._of.pop(name, ()):
                granted.names.discard(name)
                ended.add(name)
        return ended

    def done(self, granted: PendingSubscribe) -> None:
        """A SUBSCRIBE is done: its subscriptions are made, or came to nothing."""
        for name in granted.names:
            of_name = self._of[name]
            of_name.remove(granted)
            if not of_name:
                del self._of[name]
        granted.names = set()
