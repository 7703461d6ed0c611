"""The hub in the store's process sends every commit to the feed of every gateway that is attached."""

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
        """Begin to send commits to a gateway: all, or (`routed`) what matches the filters that it names."""
        feed = Feed(self._store.stats().log_end, routed, has_room, send)
        self._feeds.add(feed)
        return feed

    def close(self, feed: Feed) -> None:
        self._feeds.discard(feed)

    def _on_commit(self, commit: Commit) -> None:
        for feed in self._feeds:
            try:
                feed.send_commit(commit)
            except Exception:
                # The gateway sees a gap in the ranges, and reads what it missed.
                log.exception("telling a gateway of the commit at %d failed", commit.position)
                feed.drop_commit(commit)
