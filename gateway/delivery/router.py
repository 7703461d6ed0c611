"""From a commit to its subscribers: match each topic, and offer the message to each session that matches.

Runs on the loop right after the fold, once for each commit. The routes of a topic are made once (`_plan`) and kept
until the trie's answer for it changes.

A commit that makes many offers takes several turns of the loop. The rules for what happens between two turns:

* Later commits wait, and so do the answers to who published. So the order of messages is kept.
* Sessions that are behind read nothing from the store (`delivered`). They would read what they are offered later.
* Subscriptions that began after the commit are offered nothing of it, and those that ended are offered nothing more.
"""

import asyncio
import logging
from collections.abc import Callable
from time import time
from typing import Final

from gateway.net.write_buffer import Flusher
from gateway.session.message_encoding import Message
from gateway.session.subscription import Route, Subscriber, Subscription
from matcher.trie import Trie
from store.api import Commit, Rest, Wants

log = logging.getLogger(__name__)

_OFFERS: Final = 8192  # in one turn of the loop: a few milliseconds
_MAX_PLANS: Final = 65_536
_MAX_ROUTES: Final = 1 << 20  # of all plans: with many subscribers of everything few topics are kept
_NO_OFFSETS: Final[dict[bytes, int]] = {}


class _Plan:
    """The routes of one topic, and the trie's answer that they were made of."""

    __slots__ = ("matched", "routes")

    def __init__(self, matched: list[Subscription], routes: list[Route]) -> None:
        self.matched = matched
        self.routes = routes


def _ignore_commit(commit: Commit) -> None:
    """Until there are inboxes."""


def _ignore_position(_position: int) -> Rest | None:
    """Until there are sessions."""
    return None


class _Delivery:
    """How far a commit was offered that takes several turns of the loop."""

    __slots__ = ("at", "commit", "first", "is_late", "matched", "message", "now_ms", "routes")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.now_ms = int(time() * 1000)
        self.at: int = 0  # index of what is offered next: of the messages that were held, then of the others
        self.first: int = 0  # route that gets it next
        self.routes: list[Route] = []  # of it, if `first` is not 0
        self.matched: list[Subscription] = []  # the trie's answer that they were made of
        self.message: Message | None = None  # it, with its encodings
        self.is_late: bool = False  # the turn of the commit is over


class Router:
    """The subscriptions of all sessions that are connected to this node. `flusher` writes to them."""

    def __init__(self, position: int, flusher: Flusher, wants: Wants | None = None) -> None:
        self.wants: Wants | None = wants  # None: the store tells of every commit
        self.trie: Trie[Subscription] = Trie()
        self.subscriptions: int = 0  # in the trie
        self.delivered_end: int = position  # of the log: everything before it was, or is about to be, offered
        self.on_addressed: Callable[[Commit], None] = _ignore_commit  # a commit has messages for inboxes
        self.on_missed: Callable[[int], Rest | None] = _ignore_position  # commits from this position on were missed
        self._flusher = flusher
        self._delivery: _Delivery | None = None  # None: the last commit was offered to all
        self._missed: Rest | None = None  # what is left to do after missed commits
        self._delivered: asyncio.Future[None] | None = None  # done when the last commit was offered to all
        self._plans: dict[bytes, _Plan] = {}
        self._planned = 0  # what `_plans` takes: routes, the subscriptions they were made from, 8 bytes of topics each

    def add(self, subscription: Subscription) -> None:
        """Offer to a subscription what is committed from now on. It was not added before."""
        self.trie.add(subscription.topic_filter, subscription)
        self.subscriptions += 1
        if self.wants is not None:
            self.wants.add(subscription.topic_filter)

    def remove(self, subscription: Subscription) -> None:
        if self.trie.remove(subscription.topic_filter, subscription):
            self.subscriptions -= 1
            if self.wants is not None:
                self.wants.remove(subscription.topic_filter)

    @property
    def is_delivering(self) -> bool:
        """Whether the last commit is still to be offered to some sessions."""
        return self._delivery is not None or self._missed is not None

    async def delivered(self) -> None:
        """Wait until the last commit was offered to all sessions."""
        while self.is_delivering:
            if self._delivered is None:
                self._delivered = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._delivered)

    def deliver(self, commit: Commit) -> Rest | None:
        """Offer every message of a commit to the sessions that match, in log order. Returns the rest, if it takes more
        than this turn of the loop.

        A delayed or half message has an older record than the commit. Sessions that match it read it from the log.
        """
        self.delivered_end = commit.end
        if commit.missed_from >= 0:
            self._missed = self.on_missed(commit.missed_from)
            return None if self._missed is None else self._go_on_missed
        if not commit.topics and not commit.moved:
            return None
        if commit.addressed:
            self.on_addressed(commit)
        if not self.subscriptions:
            return None
        self._delivery = _Delivery(commit)
        return self._go_on if self._go_on() else None

    def _go_on_missed(self) -> bool:
        if self._missed is not None and self._missed():
            return True
        self._missed = None
        self._end()
        return False

    def _go_on(self) -> bool:
        """Offer a part of the commit. Returns whether something is left to offer or to write."""
        delivery = self._delivery
        if delivery is None:
            return False
        has_more = False
        self._flusher.begin_fan_out()
        try:
            has_more = self._offer_some(delivery)
        except Exception:
            log.exception("offering the messages of a commit failed")
        if self._flusher.end_fan_out(has_more) or has_more:
            return True
        self._delivery = None
        self._end()
        return False

    def _offer_some(self, delivery: _Delivery) -> bool:
        """Make as many offers as one turn has time for. Returns whether more are to be made."""
        commit = delivery.commit
        topics, moved = commit.topics, commit.moved
        at, first, held, count = delivery.at, delivery.first, len(moved), len(moved) + len(topics)
        left = _OFFERS
        while at < count and left > 0:
            topic = moved[at].topic if at < held else topics[at - held]
            routes = delivery.routes if first else self.routes(topic)
            end = min(len(routes), first + left)
            left -= 1 + end - first
            is_last = end == len(routes)
            if end:
                some = routes if is_last and not first else routes[first:end]
                if delivery.is_late:
                    some = self._still_due(delivery, some, topic)
                if at < held:  # first: a session that reads one of these reads all of the commit
                    for route in some:
                        route.session.offer_released(route, moved[at], commit.position)
                else:
                    self._offer(delivery, some, at - held)
            if is_last:
                at, first, delivery.message = at + 1, 0, None
            else:
                if not first:
                    delivery.routes, delivery.matched = routes, self.trie.match(topic)
                first = delivery.first = end
        delivery.at, delivery.first, delivery.is_late = at, first, True
        return at < count

    def _offer(self, delivery: _Delivery, routes: list[Route], i: int) -> None:
        """Offer message `i` of the commit."""
        commit = delivery.commit
        offsets = _NO_OFFSETS
        if commit.filter_offsets is not None and commit.filter_offsets[i]:
            offsets = dict(commit.filter_offsets[i])
        topic_offset = commit.topic_offsets[i]
        now_ms = delivery.now_ms
        message = delivery.message
        for route in routes:
            session = route.session
            try:
                if session.lagging and session.is_behind(route, topic_offset, offsets):
                    continue  # it reads the message when it catches up: nothing is decoded for it now
                if message is None:
                    message = delivery.message = Message(commit.data, commit.starts[i])
                session.offer(route, message, topic_offset, offsets, now_ms)
            except Exception:
                log.exception("offering a message to %r failed", session.client_id)  # other sessions go on

    def _still_due(self, delivery: _Delivery, routes: list[Route], topic: bytes) -> list[Route]:
        """Those of the routes that are offered a message some turns after its commit."""
        if delivery.first and self.trie.match(topic) is not delivery.matched:
            known = [route.session.route(topic) for route in routes if not route.session.closed]
            routes = [route for route in known if route is not None]
        return [route for route in routes if route.cursors or route.start < delivery.commit.end]

    def _end(self) -> None:
        if self._delivered is not None:
            self._delivered.set_result(None)
            self._delivered = None

    def routes(self, topic: bytes) -> list[Route]:
        """The routes of a topic, one for each session that matches."""
        matched = self.trie.match(topic)
        plan = self._plans.get(topic)
        if plan is not None and plan.matched is matched:
            return plan.routes
        routes = _plan(topic, matched)
        size = len(matched) + len(routes) + (len(topic) >> 3)
        if plan is not None:
            self._planned -= len(plan.matched) + len(plan.routes) + (len(topic) >> 3)
        elif len(self._plans) >= _MAX_PLANS:
            self._forget()
        if self._planned + size > _MAX_ROUTES:
            self._forget()
        self._planned += size
        self._plans[topic] = _Plan(matched, routes)
        return routes

    def _forget(self) -> None:
        self._plans.clear()
        self._planned = 0


def _plan(topic: bytes, matched: list[Subscription]) -> list[Route]:
    """One route for each session: that of its only matching subscription, or its merged one."""
    first: dict[Subscriber, Route] = {}
    for subscription in matched:
        session = subscription.session
        if session not in first:
            first[session] = subscription.route
        else:
            merged = session.route(topic)
            if merged is not None:
                first[session] = merged
    return list(first.values())
