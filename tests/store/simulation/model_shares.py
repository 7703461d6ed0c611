"""The part of the model that is about shared subscriptions: groups that are there while they have members."""

from collections import Counter
from collections.abc import Callable

from matcher.names import has_wildcard
from record.layout import Kind
from store import control
from store.api import filter_queue, topic_queue
from tests.store.simulation.model_groups import Groups, Place
from tests.store.simulation.model_sessions import Sessions

PREFIX = b"$share/"


def filter_of(group: bytes) -> bytes:
    """The filter that a group reads."""
    return group.split(b"/", 2)[2]


def queue_of(group: bytes) -> bytes:
    name = filter_of(group)
    return filter_queue(name) if has_wildcard(name) else topic_queue(name)


class Shares:
    """Shared subscriptions by their whole filter. `end_of` says where a queue ends."""

    def __init__(self, sessions: Sessions, groups: Groups, end_of: Callable[[bytes], int]) -> None:
        self._sessions = sessions
        self._groups = groups
        self._end_of = end_of
        self.held: dict[bytes, set[bytes]] = {}  # the nodes by group
        self.there: set[bytes] = set()

    def members(self) -> Counter[bytes]:
        """How many sessions are members of each."""
        sessions = self._sessions.by_client.values()
        return Counter(name for session in sessions for name in session.subscriptions if name.startswith(PREFIX))

    def wanted(self) -> list[bytes]:
        """The wildcard filters that they read, one for each."""
        return [filter_of(group) for group in self.there if has_wildcard(filter_of(group))]

    def is_over(self, group: bytes, queue: bytes) -> bool:
        """Whether nobody is there for whom a group would have this queue."""
        return group.startswith(PREFIX) and group not in self.there and queue == queue_of(group)

    def fold(self, kind: Kind, group: bytes, payload: bytes) -> None:
        """Take a record about a shared subscription."""
        if kind == Kind.SHARE_JOINED:
            self.held.setdefault(group, set()).add(control.ShareJoined.parse(payload).gateway)
        elif kind == Kind.SHARE_LEFT:
            nodes = self.held.get(group, set())
            nodes.discard(control.ShareJoined.parse(payload).gateway)
            if not nodes:
                self.held.pop(group, None)
        else:
            for client, packet_id, offset in control.ShareHandedOver.parse(payload).handed:
                self._groups.finish(group, queue_of(group), offset)
                if packet_id and client in self._sessions.by_client:
                    self._sessions.sent(client, packet_id, group, offset)

    def notice(self) -> None:
        """A record is folded: there may be others now."""
        now = {*self.held, *self.members()}
        for group in self.there - now:
            self._groups.remove(group)
        for group in now - self.there:
            self._groups.places[group, queue_of(group)] = Place(self._end_of(queue_of(group)))
        self.there = now
