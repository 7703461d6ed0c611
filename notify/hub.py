"""The hub in the store's process: every commit goes to the feed of every gateway that is attached."""

import logging
from collections.abc import Callable

from notify.feed import Feed
from store.api import Commit, Store

log = logging.getLogger(__name__)


class Hub:
    """The feeds of all gateways."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._feeds: set[Feed] = set()
        store.on_commit(self._on_commit)

    def open(self, routed: bool, has_room: Callable[[], bool], send: Callable[[bytes], None]) -> Feed:
        """Begin to tell a gateway of commits: of all, or (`routed`) of what it watches."""
        feed = Feed(self._store.stats().log_end, routed, has_room, send)
        self._feeds.add(feed)
        return feed

    def close(self, feed: Feed) -> None:
        self._feeds.discard(feed)

    def _on_commit(self, commit: Commit) -> None:
        for feed in self._feeds:
            try:
                feed.take(commit)
            except Exception:
                # The gateway finds a gap in the ranges, and reads what it missed.
                log.exception("telling a gateway of the commit at %d failed", commit.position)
                feed.lose(commit)
