"""The view of shared subscriptions: which there are, and for whom. Each is a group named by its filter, `$share/…`.

It begins at the end of its queue with its first member, and is forgotten with its last. Members are the durable
sessions that subscribe to it, and, as one, all others of each node.
"""

from collections.abc import Iterator
from typing import Final

from matcher.names import has_wildcard, split_shared
from store.api import subscription_queue
from store.control import ShareJoined, ShareLeft
from store.views.dispatch import Dispatcher
from store.views.pops import Pops
from store.views.state import State
from store.views.wanted import WantedFilters

_MEMBERS: Final = b"y"  # group → number of durable sessions
_HELD: Final = b"z"  # group → nodes that have other members of it, sorted, with a NUL between them


class Shares:
    """Shared subscriptions by their filter."""

    __slots__ = ("_dispatcher", "_pops", "_state", "_wanted")

    def __init__(self, state: State, wanted: WantedFilters, dispatcher: Dispatcher, pops: Pops) -> None:
        self._state = state
        self._wanted = wanted
        self._dispatcher = dispatcher
        self._pops = pops

    def exists(self, group: bytes) -> bool:
        return self._members(group) > 0 or self._is_held(group)

    def joined(self, group: bytes) -> None:
        """One more durable session subscribes to it."""
        members = self._members(group)
        if not members and not self._is_held(group):
            self._begin(group)
        self._state.put(_MEMBERS, group, (members + 1).to_bytes(4, "big"))

    def left(self, group: bytes) -> None:
        """One of those does not any more."""
        members = self._members(group) - 1
        if members:
            self._state.put(_MEMBERS, group, members.to_bytes(4, "big"))
            return
        self._state.delete(_MEMBERS, group)
        if not self._is_held(group):
            self._end(group)

    def gateway_joined(self, group: bytes, event: ShareJoined) -> None:
        """A gateway has members whose sessions are not in the log."""
        if not self.exists(group):
            self._begin(group)
        nodes = {*self._nodes(group), event.gateway}
        self._state.put(_HELD, group, b"\0".join(sorted(nodes)))

    def gateway_left(self, group: bytes, event: ShareLeft) -> None:
        """A gateway has no such members any more."""
        nodes = self._nodes(group)
        if event.gateway not in nodes:
            return
        nodes.remove(event.gateway)
        if nodes:
            self._state.put(_HELD, group, b"\0".join(nodes))
            return
        self._state.delete(_HELD, group)
        if not self._members(group):
            self._end(group)

    def held(self, after: bytes | None) -> Iterator[tuple[bytes, list[bytes]]]:
        """Those that nodes have other members of, with the nodes, sorted, behind `after`."""
        for group, nodes in self._state.scan(_HELD, after=after):
            yield group, nodes.split(b"\0")

    def _members(self, group: bytes) -> int:
        row = self._state.get(_MEMBERS, group)
        return 0 if row is None else int.from_bytes(row, "big")

    def _is_held(self, group: bytes) -> bool:
        return self._state.get(_HELD, group) is not None

    def _nodes(self, group: bytes) -> list[bytes]:
        row = self._state.get(_HELD, group)
        return [] if row is None else row.split(b"\0")

    def _begin(self, group: bytes) -> None:
        topic_filter = split_shared(group)[1]
        if has_wildcard(topic_filter):
            self._wanted.add(topic_filter)
        queue = subscription_queue(group)
        self._pops.reset(group, {queue: self._dispatcher.end(queue)})

    def _end(self, group: bytes) -> None:
        self._pops.removed(group)
        topic_filter = split_shared(group)[1]
        if has_wildcard(topic_filter):
            self._wanted.remove(topic_filter)
