"""The shared subscriptions that sessions of this node are members of (`gateway.shared.group`).

Membership of a durable session is in the log with its other subscriptions. That of all others is one record of the
node, SHARE_HELD, until the last of them is gone: SHARE_LEFT. `gateway.broker.maintenance` ends
what a node that died left behind.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Final

from gateway.config.config import MqttConfig
from gateway.observe.counters import Counters
from gateway.observe.throttled_log import tell_failure
from gateway.session.session import Session
from gateway.shared.group import ROUNDS, Share
from gateway.shared.member import Leased, Member
from matcher.names import split_shared
from matcher.trie import Trie
from notify import TopicEvents
from store import control
from store.api import Appended, Done, Store
from store.api import Subscription as StoredSubscription
from store.errors import StoreBusy

log = logging.getLogger(__name__)

_SETTLE_SECONDS: Final = 0.1  # acknowledgements are recorded so far apart
_BUSY_SECONDS: Final = 0.05


class Shares:
    """Groups with members at this node, by their filter."""

    def __init__(self, store: Store, config: MqttConfig, counters: Counters, gateway: bytes) -> None:
        self.store = store
        self.gateway = gateway  # its name; b"": the process of the store itself
        self.counters = counters
        self.lease_ms = config.shared_ack_timeout * 2000
        self.round = 0
        self._limit = config.max_shared_groups
        self._max_in_flight = config.max_shared_in_flight
        self._round_seconds = config.shared_ack_timeout / ROUNDS
        self._loop = asyncio.get_running_loop()
        self._shares: dict[bytes, Share] = {}
        self._coming: dict[bytes, int] = {}  # groups that members were granted, that are not here yet: how many
        self._trie: Trie[Share] = Trie()
        self._holders: dict[bytes, int] = {}  # members without a trace in the log
        self._unsettled: dict[Share, None] = {}
        self._settle_timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life of the node

    def start(self) -> None:
        self._ticker = self._loop.call_later(self._round_seconds, self._tick)

    async def stop(self) -> None:
        """Have the store know the rest, when all sessions are closed."""
        for timer in (self._ticker, self._settle_timer):
            if timer is not None:
                timer.cancel()
        self._settle()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- members

    def may_join(self, names: Iterable[bytes]) -> bool:
        """Whether there is room for those of these groups that are not there."""
        new = sum(1 for name in names if name not in self._shares and name not in self._coming)
        return not new or len(self._shares) + len(self._coming) + new <= self._limit

    def expect(self, name: bytes) -> None:
        """Somebody is granted a membership, and will `join` or `hold`: `expected` follows in any case."""
        if name not in self._shares:
            self._coming[name] = self._coming.get(name, 0) + 1

    def expected(self, names: Iterable[bytes]) -> None:
        """These memberships are made, or came to nothing."""
        for name in names:
            count = self._coming.get(name, 0)
            if count > 1:
                self._coming[name] = count - 1
            elif count:
                del self._coming[name]

    def join(self, session: Session, stored: StoredSubscription, begun: bool = True) -> bool:
        """Make a session a member of the group that the filter names, or change what it has granted. Whether it is
        new. `begun`: the log knows of the group by now, else `begin` follows."""
        name = stored.topic_filter
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = Share(self, name)
            self._trie.add(split_shared(name)[1], share)
            if self.store.wants is not None:
                self.store.wants.add(split_shared(name)[1])
        self._coming.pop(name, None)
        share.is_begun = share.is_begun or begun
        member = share.members.get(session)
        is_new = member is None
        identifiers = (stored.identifier,) if stored.identifier else ()
        if member is None:
            member = Member(share, session, self._max_in_flight)
            session.join_group(name, member)
            member.grant(stored.qos, identifiers, stored.retain_as_published)
            self.counters.shared_groups += not share.members
            self.counters.shared_members += 1
            share.add(member)
        else:
            share.change(member, stored.qos, identifiers, stored.retain_as_published)
        return is_new

    def hold(self, session: Session, stored: StoredSubscription, done: Done) -> bool:
        """`join` for a session that leaves no trace in the log. Nothing that is published behind this call is missed;
        `done` is called when the log knows of the group."""
        name = stored.topic_filter
        is_new = self.join(session, stored, begun=False)
        if is_new:
            self._holders[name] = self._holders.get(name, 0) + 1
        share = self._shares[name]

        def held(appended: Appended) -> None:
            if appended.error is None:
                share.is_begun = True
                share.wake()
            done(appended)

        self.store.append([control.share_held(name, self.gateway)], held)
        return is_new

    def leave(self, session: Session, name: bytes) -> bool:
        """End a membership; what it has on its way goes on. Whether there was one."""
        member = session.leave_group(name)
        if not isinstance(member, Member):
            return False
        share = member.share
        share.remove(member)
        self.counters.shared_members -= 1
        self.counters.shared_groups -= not share.members
        if share.is_empty:
            self.drop(share)
        if not session.durable:
            self._let_go(name)
        return True

    def close(self, session: Session) -> None:
        """The connection is over: what was leased to it goes to others."""
        lost: dict[Share, list[Leased]] = {}
        for entry in session.remove_leased():  # of memberships that ended before too
            if isinstance(entry, Leased):
                lost.setdefault(entry.member.share, []).append(entry)
        if session.has_shares:
            for name in list(session.shares):
                self.leave(session, name)
        for share, entries in lost.items():
            share.lost(entries)

    def _let_go(self, name: bytes) -> None:
        left = self._holders[name] - 1
        if left:
            self._holders[name] = left
            return
        del self._holders[name]
        self._record_left(name)

    def _record_left(self, name: bytes) -> None:
        """Have the log know, once the store has room, that nobody is left; unless somebody came meanwhile."""
        if name in self._holders:
            return

        def recorded(appended: Appended) -> None:
            if isinstance(appended.error, StoreBusy):
                self._loop.call_later(_BUSY_SECONDS, self._record_left, name)
            elif appended.error is not None:
                tell_failure(log, appended.error, "recording the end of the shared subscription %r failed: %s", name)

        self.store.append([control.share_left(name, self.gateway)], recorded)

    # --- from the store

    def deliver(self, events: TopicEvents) -> None:
        """Wake the groups whose queues grew."""
        if not self._shares:
            return
        commit = events.commit
        if commit.missed_from >= 0:
            for share in self._shares.values():
                share.wake()
        topics = set(commit.topics)
        topics.update([moved.topic for moved in commit.moved])
        for topic in topics:
            for share in self._trie.match(topic):
                share.wake()

    def look(self, name: bytes) -> None:
        """Other gateways gave messages of a group back."""
        share = self._shares.get(name)
        if share is not None:
            share.wake()

    # --- for `Share`

    def spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def settle_soon(self, share: Share) -> None:
        self._unsettled[share] = None
        if self._settle_timer is None:
            self._settle_timer = self._loop.call_later(_SETTLE_SECONDS, self._settle)

    def wake_later(self, share: Share) -> None:
        self._loop.call_later(_BUSY_SECONDS, share.wake)

    def drop(self, share: Share) -> None:
        if self._shares.get(share.name) is share:
            del self._shares[share.name]
            self._trie.remove(split_shared(share.name)[1], share)
            if self.store.wants is not None:
                self.store.wants.remove(split_shared(share.name)[1])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a shared subscription failed", exc_info=task.exception())

    def _settle(self) -> None:
        self._settle_timer = None
        unsettled, self._unsettled = self._unsettled, {}
        for share in unsettled:
            share.flush()

    def _tick(self) -> None:
        self.round += 1
        self._ticker = self._loop.call_later(self._round_seconds, self._tick)
        for share in list(self._shares.values()):
            share.tick()
