"""Filters that were granted to a session and are not yet subscriptions, because their records are not committed.

A client need not wait for SUBACK. So the grants of each SUBSCRIBE are kept separately. A later SUBSCRIBE with the same
filter changes the subscription again. UNSUBSCRIBE ends the grants that came before it, and none that come after it.
"""

from collections.abc import Collection, Iterable


class PendingSubscribe:
    """The grants of one SUBSCRIBE that were not unsubscribed meanwhile."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: set[bytes] = set()


class PendingSubscriptions:
    """The grants of all SUBSCRIBEs of a session that are not done."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[bytes, list[PendingSubscribe]] = {}  # by name, oldest first

    @property
    def names(self) -> Collection[bytes]:
        """Filters, and names of replays (`matcher.reserved.replay_name`)."""
        return self._of.keys()

    def add(self, granted: PendingSubscribe, names: Iterable[bytes]) -> None:
        """Add names to the grants of a SUBSCRIBE."""
        for name in names:
            if name not in granted.names:
                granted.names.add(name)
                self._of.setdefault(name, []).append(granted)

    def end(self, names: Iterable[bytes]) -> set[bytes]:
        """End the grants of these names. Returns the names that were granted."""
        ended: set[bytes] = set()
        for name in names:
            for granted in self._of.pop(name, ()):
                granted.names.discard(name)
                ended.add(name)
        return ended

    def done(self, granted: PendingSubscribe) -> None:
        """Remove a SUBSCRIBE whose subscriptions are made, or will not be."""
        for name in granted.names:
            of_name = self._of[name]
            of_name.remove(granted)
            if not of_name:
                del self._of[name]
        granted.names = set()
