"""Spans of commits, in the process of the store: how long messages waited, and how long the disk took."""

from time import monotonic_ns, time_ns

import record
from gateway.tracing.tracer import Attributes, Traced, Tracer
from store.api import Commit
from store.commit_listeners import MESSAGES
from store.local_store import LocalStore


def trace_commits(store: LocalStore, tracer: Tracer) -> None:
    """Make spans of the traced messages of each commit from now on. To be called before others listen to commits: the
    span of a commit has no delivery in it."""
    store.on_commit(_Commits(store, tracer).on_commit, MESSAGES)


class _Commits:
    def __init__(self, store: LocalStore, tracer: Tracer) -> None:
        self._store = store
        self._tracer = tracer

    def on_commit(self, commit: Commit) -> None:
        tracer, data = self._tracer, commit.data
        if not tracer.begins_traces and not tracer.any_names_trace(data):
            return
        now_ns, since = time_ns(), monotonic_ns()
        times = self._store.batch_times()
        began_ns, flushing_ns, flushed_ns = (now_ns - (since - each) if each else 0 for each in times)
        for start in commit.starts:
            position = commit.position + start
            if not tracer.names_trace(data, start) and not tracer.begins_trace(position):
                continue
            _, _, _, topic, _, block, payload = record.decode(data, start)
            parent = tracer.parent_of(block, position, commit.store_time)
            if parent is None:
                continue
            message = Traced(parent, topic, len(payload), position)
            batch: Attributes = {"sluice.batch.messages": len(commit.starts), "sluice.batch.bytes": len(data)}
            span = tracer.span("commit", message, parent, began_ns or now_ns, now_ns, batch)
            if span is not None and flushing_ns:
                tracer.span("flush", message, span, flushing_ns, flushed_ns, batch)
