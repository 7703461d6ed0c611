"""Has a message enter its queues again, long after its record: as one that was held does."""

import record
from store.api import Commit, Moved
from store.engine import Engine


def enter(engine: Engine, topic: bytes, position: int, length: int) -> Moved:
    """The record at `position` enters the queues of `topic` at the end of the log, with the newest store time."""
    views = engine._views
    commit = Commit(b"", views.position, views.store_time)
    reference = record.pack_refs([position], [length], [views.store_time], [record.tag_of(topic, b"")])
    views._dispatcher.enter_moved(commit, [(position, length, topic, 1)], [reference])
    return commit.moved[0]
