"""The shared subscriptions that have members among this node's sessions.

The log has the membership of a durable session with its other subscriptions. For all other members of a group the node
writes one record, SHARE_JOINED, with the first of them and SHARE_LEFT with the last. After a crash
`gateway.broker.maintenance` writes SHARE_LEFT.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from gateway.config.mqtt import MqttConfig
from gateway.observe.counters import Counters
from gateway.observe.throttled_log import log_failure
from gateway.session.session import Session
from gateway.shared.group import SharedGroup
from gateway.shared.leases import TICKS, LeasedMessage, Leases
from gateway.shared.wake_queue import WakeQueue
from matcher.names import split_shared
from matcher.trie import Trie
from store import control
from store.api import Appended, Commit, Done, Rest, Store, StoredSubscription
from store.commit_listeners import MESSAGES
from store.errors import StoreBusy, StoreError

log = logging.getLogger(__name__)

_BUSY_SECONDS: Final = 0.05  # until a busy store is asked again
_MATCHES: Final = 4096  # topics that are matched and groups that match, in one turn of the loop


class SharedSubscriptions:
    """The groups with members at this node. `gateway` is its name; b"" for the process of the store itself."""

    def __init__(
        self,
        store: Store,
        config: MqttConfig,
        counters: Counters,
        gateway: bytes,
        on_failed: Callable[[Session, StoreError], None],
    ) -> None:
        """on_failed: closes the connection of a session whose state the log may not have."""
        self._store = store
        self._on_failed = on_failed
        self._gateway = gateway
        self._counters = counters
        self._max_groups = config.max_shared_groups
        self._max_in_flight = config.max_shared_in_flight
        self._lease_ms = config.shared_ack_timeout * 2000
        self._tick_seconds = config.shared_ack_timeout / TICKS
        self._ticks = 0
        self._loop = asyncio.get_running_loop()
        self._groups: dict[bytes, SharedGroup] = {}  # by name, the whole filter
        self._trie: Trie[SharedGroup] = Trie()
        self._wake_queue = WakeQueue(self._loop)
        self._topics: list[bytes] = []  # of the last commit, not matched yet
        self._due: list[SharedGroup] = []  # groups that the last commit wakes
        self._woken = 0  # of these groups
        self._listening = store.on_commit(self._deliver, 0)  # to nothing while there are no groups
        self._granted: dict[bytes, int] = {}  # groups that are not here yet: how many members will join or not
        self._transient: dict[bytes, int] = {}  # members whose session is not in the log, by group
        self._ticker: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life of the node

    def start(self) -> None:
        self._ticker = self._loop.call_later(self._tick_seconds, self._tick)

    async def stop(self) -> None:
        """Settle what is left in the store. All sessions are closed by now."""
        if self._ticker is not None:
            self._ticker.cancel()
        for group in self._groups.values():
            group.leases.flush()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tick(self) -> None:
        self._ticks += 1
        self._ticker = self._loop.call_later(self._tick_seconds, self._tick)
        for group in list(self._groups.values()):
            group.tick(self._ticks)
            self._drop_if_empty(group)

    # --- members

    def may_join(self, names: Iterable[bytes]) -> bool:
        """Whether the limit leaves room for those of these groups that are not here yet."""
        new = sum(1 for name in names if name not in self._groups and name not in self._granted)
        if not new or len(self._groups) + len(self._granted) + new <= self._max_groups:
            return True
        for group in list(self._groups.values()):
            self._drop_if_empty(group)
        return len(self._groups) + len(self._granted) + new <= self._max_groups

    def grant(self, name: bytes) -> None:
        """Reserve room for a group that a session is about to join. `end_grants` must follow in any case."""
        if name not in self._groups:
            self._granted[name] = self._granted.get(name, 0) + 1

    def end_grants(self, names: Iterable[bytes]) -> None:
        """End reservations: the sessions have joined, or will not."""
        for name in names:
            count = self._granted.get(name, 0)
            if count > 1:
                self._granted[name] = count - 1
            elif count:
                del self._granted[name]

    def join(self, session: Session, stored: StoredSubscription, is_begun: bool = True) -> bool:
        """Make a session a member, or change its options. Returns whether it is a new member. `is_begun`: the log
        knows the group already."""
        name = stored.topic_filter
        group = self._groups.get(name)
        if group is None:
            group = self._add_group(name)
        self._granted.pop(name, None)
        group.is_begun = group.is_begun or is_begun
        identifiers = (stored.identifier,) if stored.identifier else ()
        member = group.members.get(session)
        if member is not None:
            member.grant(stored.qos, identifiers, stored.retain_as_published)
            return False
        self._counters.shared_groups += not group.members
        self._counters.shared_members += 1
        member = group.join(session, stored.qos, identifiers, stored.retain_as_published, self._max_in_flight)
        session.join_group(name, member)
        return True

    def join_transient(self, session: Session, stored: StoredSubscription, done: Done) -> bool:
        """Make a session that is not in the log a member. Returns whether it is a new member. It gets what is
        published from this call on. `done` is called when the log knows the group."""
        name = stored.topic_filter
        is_new = self.join(session, stored, is_begun=False)
        if is_new:
            self._transient[name] = self._transient.get(name, 0) + 1
        group = self._groups[name]

        def recorded(appended: Appended) -> None:
            if appended.error is None:
                group.is_begun = True
                group.wake()
            done(appended)

        self._store.append([control.ShareJoined(self._gateway).frame(name)], recorded)
        return is_new

    def members_of(self, name: bytes) -> list[tuple[Session, int]]:
        """The members of a group at this node, each with the number of messages that it has not acknowledged."""
        group = self._groups.get(name)
        return [] if group is None else [(member.session, member.in_flight) for member in group.members.values()]

    def leave(self, session: Session, name: bytes) -> bool:
        """End a membership. The session may still acknowledge what it has. Returns whether it was a member."""
        if session.leave_group(name) is None:
            return False
        group = self._groups[name]
        group.leave(session)
        self._counters.shared_members -= 1
        self._counters.shared_groups -= not group.members
        self._drop_if_empty(group)
        if not session.durable:
            self._transient[name] -= 1
            if not self._transient[name]:
                del self._transient[name]
                self._record_left(name)
        return True

    def close(self, session: Session) -> None:
        """End all memberships of a session whose connection has ended. Others get what was leased to it."""
        lost: dict[Leases, list[LeasedMessage]] = {}
        for leased in session.exchanges.remove_leased():  # also from groups that it left before
            if isinstance(leased, LeasedMessage):
                lost.setdefault(leased.leases, []).append(leased)
        for name in list(session.shares):
            self.leave(session, name)
        for leases, messages in lost.items():
            leases.give_back(messages)
            group = self._groups.get(leases.group)
            if group is not None:
                self._drop_if_empty(group)

    def _record_left(self, name: bytes) -> None:
        """Write SHARE_LEFT as soon as the store has room, unless a member has joined by then."""
        if name in self._transient:
            return

        def recorded(appended: Appended) -> None:
            if isinstance(appended.error, StoreBusy):
                self._loop.call_later(_BUSY_SECONDS, self._record_left, name)
            elif appended.error is not None:
                log_failure(log, appended.error, "recording the end of the shared subscription %r failed: %s", name)

        self._store.append([control.ShareLeft(self._gateway).frame(name)], recorded)

    # --- groups

    def _add_group(self, name: bytes) -> SharedGroup:
        group = SharedGroup(
            name, self._store, self._counters, self._gateway, self._lease_ms, self._tasks, self._on_failed
        )
        self._groups[name] = group
        self._trie.add(split_shared(name)[1], group)
        self._listening.parts = MESSAGES
        if self._store.wants is not None:
            self._store.wants.add(split_shared(name)[1])
        return group

    def _drop_if_empty(self, group: SharedGroup) -> None:
        if group.is_empty and self._groups.get(group.name) is group:
            group.leases.flush()
            group.leases.detach()
            del self._groups[group.name]
            if not self._groups:
                self._listening.parts = 0
            self._trie.remove(split_shared(group.name)[1], group)
            if self._store.wants is not None:
                self._store.wants.remove(split_shared(group.name)[1])

    def _deliver(self, commit: Commit) -> Rest | None:
        """Wake the groups whose queues grew with a commit. Returns the rest, if it takes more than this turn of the
        loop."""
        self._due = list(self._groups.values()) if commit.missed_from >= 0 else []
        topics = set(commit.topics)
        topics.update([moved.topic for moved in commit.moved])
        self._topics = list(topics)
        return self._wake_some if self._wake_some() else None

    def _wake_some(self) -> bool:
        """Wake as many groups of the last commit as one turn has time for. Returns whether others are left."""
        left = _MATCHES
        while left > 0:
            if not self._due:
                if not self._topics:
                    return False
                self._due = self._trie.match(self._topics.pop())
                left -= 1
            end = min(len(self._due), self._woken + left)
            for group in self._due[self._woken : end]:
                self._wake_queue.add(group)
            left -= end - self._woken
            self._woken = end
            if end == len(self._due):
                self._due, self._woken = [], 0
        return bool(self._due or self._topics)

    def wake(self, name: bytes) -> None:
        """Wake a group to which another gateway gave messages back."""
        group = self._groups.get(name)
        if group is not None:
            group.wake()
