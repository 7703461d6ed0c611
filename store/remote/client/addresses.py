"""Where a gateway finds its store: a list of addresses, and what the stores there say about who leads. No I/O.

The rules of the file:

* The address of the last store that served is tried once more after its stream broke. Then the list is tried in turn,
  and behind it the addresses that a store has told of.
* A store that does not lead may name the one that does. That one is tried at once, but only once between two pauses:
  two stores that name each other are asked at the pace of all others.
"""

from collections.abc import Sequence


class Addresses:
    """The addresses of a store, each `host:port` or `unix:path`. `current` is the one to try now."""

    def __init__(self, own: Sequence[str]) -> None:
        """Raises ValueError if there is no address."""
        if not own:
            raise ValueError("a store needs at least one address")
        self.own = tuple(own)
        self.current = self.own[0]
        self._all = self.own
        self._next = 1 % len(self.own)  # of all, to be tried when `current` fails
        self._was_referred = False  # since the last pause

    def failed(self) -> None:
        """Try the next one of the list from now on."""
        self._next %= len(self._all)
        self.current = self._all[self._next]
        self._next = (self._next + 1) % len(self._all)

    def learned(self, nodes: Sequence[str]) -> None:
        """Note where the stores of all nodes of the cluster are."""
        self._all = (*self.own, *(node for node in nodes if node not in self.own))

    def served(self) -> None:
        """Note that the store at `current` serves: when it does so no more, begin with the first of the list."""
        self._next = 0

    def referred(self, leader: str) -> bool:
        """Note that the store at `current` does not lead, but the one at `leader`, if that is known.

        Returns whether `current` is to be tried without a pause.
        """
        if not leader or leader == self.current or self._was_referred:
            self.failed()
            return False
        self.current = leader
        self._was_referred = True
        return True

    def paused(self) -> None:
        """Note that there was a pause."""
        self._was_referred = False

    def __str__(self) -> str:
        return " or ".join(self.own)
