"""From a commit to its subscribers: match each topic, and offer the message to each session that matches.

Runs on the loop right after the fold, once for each commit. The routes of a topic are made once (`_plan`) and kept
until the trie's answer for it changes.
"""

import logging
from collections.abc import Callable
from time import time
from typing import Final

from gateway.session.message_encoding import Message
from gateway.session.subscription import Route, Subscriber, Subscription
from matcher.trie import Trie
from store.api import Commit, Wants

log = logging.getLogger(__name__)

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


def _ignore_position(position: int) -> None:
    """Until there are sessions."""


class Router:
    """The subscriptions of all sessions that are connected to this node."""

    def __init__(self, position: int, wants: Wants | None = None) -> None:
        self.wants: Wants | None = wants  # None: the store tells of every commit
        self.trie: Trie[Subscription] = Trie()
        self.subscriptions: int = 0  # in the trie
        self.delivered_end: int = position  # of the log: everything before it was offered to live sessions
        self.on_addressed: Callable[[Commit], None] = _ignore_commit  # a commit has messages for inboxes
        self.on_missed: Callable[[int], None] = _ignore_position  # commits from this position on were missed
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

    def deliver(self, commit: Commit) -> None:
        """Offer every message of a commit to the sessions that match, in log order.

        A delayed or half message has an older record than the commit. Sessions that match it read it from the log.
        """
        data = commit.data
        topics = commit.topics
        starts = commit.starts
        topic_offsets = commit.topic_offsets
        filter_offsets = commit.filter_offsets
        self.delivered_end = commit.end
        if commit.missed_from >= 0:
            self.on_missed(commit.missed_from)
            return
        if not topics and not commit.moved:
            return
        if commit.addressed:
            self.on_addressed(commit)
        if not self.subscriptions:
            return
        now_ms = int(time() * 1000)
        for moved in commit.moved:  # first: a session that reads one of these reads all of the commit
            for route in self.routes(moved.topic):
                route.session.offer_released(route, moved, commit.position)
        for i in range(len(topics)):
            routes = self.routes(topics[i])
            if not routes:
                continue
            message: Message | None = None
            offsets = dict(filter_offsets[i]) if filter_offsets is not None and filter_offsets[i] else _NO_OFFSETS
            topic_offset = topic_offsets[i]
            for route in routes:
                session = route.session
                try:
                    if session.lagging and session.is_behind(route, topic_offset, offsets):
                        continue  # it reads the message when it catches up: nothing is decoded for it now
                    if message is None:
                        message = Message(data, starts[i])
                    session.offer(route, message, topic_offset, offsets, now_ms)
                except Exception:
                    log.exception("offering a message to %r failed", session.client_id)  # other sessions go on

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
