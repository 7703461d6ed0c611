"""Metrics of the store of this process: its batches, and the database of its views."""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.http.histograms import histogram_family
from store.local_store import LocalStore

_VIEWS: Final = (
    ("sluice_views_memtable_bytes", "Bytes in memtables", "memtable_bytes"),
    ("sluice_views_cache_bytes", "Bytes in the block cache", "cache_bytes"),
    ("sluice_views_compaction_pending_bytes", "Bytes that compactions have to rewrite", "compaction_pending_bytes"),
    ("sluice_views_compactions", "Compactions under way", "compactions"),
    ("sluice_views_full_memtables", "Memtables that wait to be flushed", "full_memtables"),
    ("sluice_views_level0_files", "Flushed memtables that are not compacted", "level0_files"),
    ("sluice_views_writes_stopped", "1 while RocksDB takes no writes", "writes_stopped"),
    ("sluice_views_background_errors", "Errors of flushes and compactions", "background_errors"),
    ("sluice_views_keys", "Rows, estimated", "keys"),
)
_US: Final = 1_000_000


class StoreMetrics:
    """Metrics of one store."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    async def collect(self) -> Iterable[Metric]:
        store = self._store
        found = store.view_figures()
        text = "Time from the oldest append of a batch to its answer"
        return [
            histogram_family("sluice_store_append_seconds", text, store.append_us, _US),
            histogram_family("sluice_store_flush_seconds", "Time until a batch was on disk", store.flush_us, _US),
            histogram_family("sluice_store_batch_messages", "Messages in a batch", store.batch_messages),
            histogram_family("sluice_store_batch_bytes", "Bytes of a batch", store.batch_bytes),
            *(GaugeMetricFamily(name, text, value=found[key]) for name, text, key in _VIEWS),
        ]
