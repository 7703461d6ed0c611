"""The subscriptions of one session, by filter, and the routes of topics to it."""

from collections.abc import Collection
from typing import Final

from gateway.session.subscription import Route, Subscription
from matcher.cache_budget import CacheBudget
from matcher.names import matches
from matcher.trie import Trie

_MAX_ROUTES: Final = 1024  # cached per session
_MAX_CACHED: Final = 256  # bytes of a topic whose route is cached
_ROUTE_BYTES: Final = 400  # of a merged route
_budget: Final[CacheBudget[Route | None]] = CacheBudget(16 << 20)  # routes of all sessions
_FEW: Final = 16  # subscriptions that are matched one by one


class Subscriptions:
    """A part of `gateway.session.session.Session`."""

    __slots__ = ("_by_filter", "_routes", "_trie")

    def __init__(self) -> None:
        self._by_filter: dict[bytes, Subscription] = {}
        self._routes: dict[bytes, Route | None] | None = None
        self._trie: Trie[Subscription] | None = None  # of all filters, if there are many

    def __len__(self) -> int:
        return len(self._by_filter)

    def __contains__(self, topic_filter: bytes) -> bool:
        return topic_filter in self._by_filter

    def __getitem__(self, topic_filter: bytes) -> Subscription:
        return self._by_filter[topic_filter]

    def get(self, topic_filter: bytes) -> Subscription | None:
        return self._by_filter.get(topic_filter)

    def filters(self) -> Collection[bytes]:
        return self._by_filter.keys()

    def values(self) -> Collection[Subscription]:
        return self._by_filter.values()

    def put(self, subscription: Subscription) -> None:
        """Add a subscription, in place of one with the same filter."""
        topic_filter = subscription.topic_filter
        if self._trie is not None:
            old = self._by_filter.get(topic_filter)
            if old is not None:
                self._trie.remove(topic_filter, old)
            self._trie.add(topic_filter, subscription)
        self._by_filter[topic_filter] = subscription
        self.forget_routes()

    def pop(self, topic_filter: bytes) -> Subscription | None:
        """Remove a subscription and return it. None: there is no such filter."""
        subscription = self._by_filter.pop(topic_filter, None)
        if subscription is not None:
            self.forget_routes()
            if self._trie is not None:
                self._trie.remove(topic_filter, subscription)
        return subscription

    def forget_routes(self) -> None:
        """Clear the cache of routes. They refer to the session."""
        if self._routes is not None:
            self._routes.clear()

    def route(self, topic: bytes) -> Route | None:
        """The merged route of `topic` to this session, None if nothing matches."""
        routes = self._routes
        if routes is None:
            routes = self._routes = {}
        if topic in routes:
            return routes[topic]
        found = [s for s in self._matching(topic) if s.is_live]
        route: Route | None = None
        if len(found) == 1:
            route = found[0].route
        elif found:
            route = Route(found[0].session, found)
        if len(topic) <= _MAX_CACHED:
            if len(routes) >= _MAX_ROUTES:
                routes.clear()
            _budget.add(routes, topic, route, _ROUTE_BYTES if len(found) > 1 else 0)
        return route

    def route_without_cursors(self, topic: bytes) -> Route | None:
        """The same of subscriptions that have no cursor: a message older than the cursors is not theirs."""
        found = [s for s in self._matching(topic) if s.cursor is None and s.is_live]
        return Route(found[0].session, found) if found else None

    def _matching(self, topic: bytes) -> list[Subscription]:
        by_filter = self._by_filter
        if len(by_filter) <= _FEW:
            return [s for s in by_filter.values() if matches(s.topic_filter, topic)]
        trie = self._trie
        if trie is None:
            trie = self._trie = Trie(0)
            for subscription in by_filter.values():
                trie.add(subscription.topic_filter, subscription)
        return trie.match(topic)
