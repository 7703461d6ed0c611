"""The hub between the store's commits and the nodes that deliver. `broadcast`, in process."""

import logging
from collections.abc import Callable

from notify.events import TopicEvents
from store.api import Commit, Store

log = logging.getLogger(__name__)

Sink = Callable[[TopicEvents], None]


class Notifier:
    """Hands each commit's topic events to every registered node, in log order, on the loop."""

    def __init__(self, store: Store) -> None:
        self._sinks: dict[str, Sink] = {}
        self.commits = 0
        self.events = 0
        store.on_commit(self._on_commit)

    def register(self, node: str, sink: Sink) -> None:
        """Deliver events to `sink` from the next commit on. A node registers once."""
        if node in self._sinks:
            raise ValueError(f"node {node!r} is registered already")
        self._sinks[node] = sink

    def _on_commit(self, commit: Commit) -> None:
        if commit.data and not commit.topics and not commit.moved:  # without data it is a range of which that is all
            return
        events = TopicEvents(commit)
        self.commits += 1
        self.events += len(commit.topics) + len(commit.moved)
        for node, sink in self._sinks.items():
            try:
                sink(events)
            except Exception:
                # A node's fault must stop neither the other nodes nor the acknowledgements.
                log.exception("node %s failed on the events of position %d", node, commit.position)
