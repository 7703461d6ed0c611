"""The index of queues in RocksDB."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from record.layout import REFERENCE
from store.views.database.database import Database
from store.views.queues import index as index_view
from store.views.queues.index import Index, index_key

A, B = b"a" * 16, b"b" * 16  # digests of queues
GENERATION = 1_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "views", 1 << 20)
    yield database
    database.close()


def reference(queue: bytes, offset: int) -> bytes:
    return (queue[:1] + offset.to_bytes(4, "big")).ljust(REFERENCE, b".")


def references(queue: bytes, first: int, end: int) -> bytes:
    return b"".join(reference(queue, offset) for offset in range(first, end))


def put(database: Database, generation: int, queue: bytes, first: int, end: int) -> None:
    database.put_all([(index_key(generation, queue, first), references(queue, first, end))])


@pytest.mark.parametrize("kept", [0, 3 * REFERENCE, 1 << 20])
def test_readers_of_several_queues_go_on_from_entry_to_entry(
    database: Database, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(index_view, "_KEPT", kept)
    for queue in (A, B):
        put(database, 0, queue, 0, 3)
        put(database, 0, queue, 3, 5)
        put(database, 1, queue, 5, 6)
    index = Index(database, 0, GENERATION, GENERATION)
    for limit in (1, 2, 6):
        for offset in (*range(6), *reversed(range(6))):
            for queue in (A, B):
                end = min(offset + limit, 6)
                assert index.references(queue, offset, limit) == references(queue, offset, end)
    assert index.references(A, 6, 1) == b""
    put(database, 1, A, 6, 8)
    assert index.references(A, 5, 9) == references(A, 5, 8)


def test_what_is_kept_of_entries_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_view, "_KEPT", 8 * REFERENCE)
    index = Index(database, 0, 0, GENERATION)
    for number in range(20):
        queue = bytes([number]) * 16
        put(database, 0, queue, 0, 3)
        assert index.references(queue, 1, 2) == references(queue, 1, 3)
        assert sum(len(refs) for _, _, refs in index._kept.values()) == index._kept_bytes <= 8 * REFERENCE


def test_a_generation_that_was_dropped_is_not_read(database: Database) -> None:
    put(database, 0, A, 0, 3)
    index = Index(database, 0, GENERATION, GENERATION)
    assert index.references(A, 0, 3) == references(A, 0, 3)
    index.drop(0)
    assert index.references(A, 0, 3) == b""
