"""The view of shared subscriptions and their members. Each is a group named by its filter, `$share/…`.

It begins at the end of its queue with its first member, and ends with its last. Its members are the durable sessions
that subscribe to it. All transient sessions of a node count as one more member.
"""

from collections.abc import Iterator
from typing import Final

from matcher.names import has_wildcard, split_shared
from store.api import subscription_queue
from store.control import ShareJoined, ShareLeft
from store.views.database.state import State
from store.views.groups.pops import Pops
from store.views.queues.dispatch import Dispatcher
from store.views.queues.wanted import WantedFilters

_MEMBERS: Final = b"y"  # group → number of durable sessions
_TRANSIENT: Final = b"z"  # group → nodes with transient members of it, sorted, with a NUL between them


class Shares:
    """Shared subscriptions by their filter."""

    __slots__ = ("_dispatcher", "_pops", "_state", "_wanted")

    def __init__(self, state: State, wanted: WantedFilters, dispatcher: Dispatcher, pops: Pops) -> None:
        self._state = state
        self._wanted = wanted
        self._dispatcher = dispatcher
        self._pops = pops

    def exists(self, group: bytes) -> bool:
        return self._members(group) > 0 or self._has_transient(group)

    def joined(self, group: bytes) -> None:
        """Add a durable session to the members."""
        members = self._members(group)
        if not members and not self._has_transient(group):
            self._begin(group)
        self._state.put(_MEMBERS, group, (members + 1).to_bytes(4, "big"))

    def left(self, group: bytes) -> None:
        """Remove a durable session from the members."""
        members = self._members(group) - 1
        if members:
            self._state.put(_MEMBERS, group, members.to_bytes(4, "big"))
            return
        self._state.delete(_MEMBERS, group)
        if not self._has_transient(group):
            self._end(group)

    def gateway_joined(self, group: bytes, event: ShareJoined) -> None:
        """Note that a gateway has transient members."""
        if not self.exists(group):
            self._begin(group)
        nodes = {*self._nodes(group), event.gateway}
        self._state.put(_TRANSIENT, group, b"\0".join(sorted(nodes)))

    def gateway_left(self, group: bytes, event: ShareLeft) -> None:
        """Note that a gateway has no transient members any more."""
        nodes = self._nodes(group)
        if event.gateway not in nodes:
            return
        nodes.remove(event.gateway)
        if nodes:
            self._state.put(_TRANSIENT, group, b"\0".join(nodes))
            return
        self._state.delete(_TRANSIENT, group)
        if not self._members(group):
            self._end(group)

    def with_transient(self, after: bytes | None) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the shared subscriptions with transient members and their nodes, from after `after` on."""
        for group, nodes in self._state.scan(_TRANSIENT, after=after):
            yield group, nodes.split(b"\0")

    def _members(self, group: bytes) -> int:
        row = self._state.get(_MEMBERS, group)
        return 0 if row is None else int.from_bytes(row, "big")

    def _has_transient(self, group: bytes) -> bool:
        return self._state.get(_TRANSIENT, group) is not None

    def _nodes(self, group: bytes) -> list[bytes]:
        row = self._state.get(_TRANSIENT, group)
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
