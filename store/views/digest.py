"""A digest of the views as of their checkpoint. Whoever has folded the same records of the same log gets the same one.

It covers all that records make: queues with their ends and references, keys, dead letters, retained values, held
messages, sessions, wills, groups, users, producers, gateways, where the log begins, and the position and store time of
the checkpoint. It leaves out what each node does at its own pace:

* how references are cut into rows, and rows of index generations that end before the log's begin, which may have been
  dropped already (`q`, `k`, `w`, `D`). The ends of their queues count, wherever they are written down (`e`);
* copies of records. A retained value counts by the position and length of its record. A held message counts without its
  copy (`b`), and without the mark that it has one;
* how far the log was durable, which files there are, and which generations are dropped (`m`).
"""

import heapq
from collections.abc import Iterator
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Final

from record.layout import REFERENCE
from store.views.database.database import META, QUEUE_PREFIX, Database
from store.views.database.state import State
from store.views.held import HELD, KEPT, without_copy
from store.views.log_begin import LogBegin
from store.views.queues.index import ENDS, QUEUES, VIEWS, by_generation
from store.views.topics.retained import RETAINED, entered_at, record_in

_BYTES: Final = 16
_U64: Final = Struct(">Q")
_CHECKPOINT: Final = Struct(">QQ")
_SIZES: Final = Struct(">II")
_RETAINED: Final = Struct(">QIQ")
_BEHIND_VIEW: Final = 5  # where a key of `QUEUES` has the queue's digest, behind the view and the generation


def digest_of_views(database: Database, generation_bytes: int) -> bytes:
    """The digest, 16 bytes. All changes must be checkpointed. It reads all rows, some twice.

    `generation_bytes` is the range of the log whose references have a common prefix.
    """
    saved = database.checkpoint()
    oldest = LogBegin(State(database)).position // generation_bytes  # earlier generations may have been dropped
    newest = saved.position // generation_bytes
    digest = blake2b(_CHECKPOINT.pack(saved.position, saved.store_time), digest_size=_BYTES)
    for queue, end in _ends(database, newest):
        digest.update(queue + _U64.pack(end))
    for row in _references(database, oldest):
        digest.update(row)
    for number in range(256):
        view = bytes([number])
        if view in (META, QUEUES, ENDS, KEPT):
            continue
        for key, value in database.scan(view, by_generation(view, oldest) if view in VIEWS else view):
            plain = _plain(view, value)
            digest.update(_SIZES.pack(len(key), len(plain)) + key + plain)
    return digest.digest()


def _ends(database: Database, newest: int) -> Iterator[tuple[bytes, int]]:
    """Yield each queue's digest and end, in order of digests. Ends are in the index, or written down before it was
    dropped: the greatest is the queue's."""
    dropped = ((key[1:], _U64.unpack(value)[0]) for key, value in database.scan(ENDS, ENDS))
    sources = [dropped, *(_ends_of(database, generation) for generation in range(newest + 1))]
    for queue, ends in groupby(heapq.merge(*sources), itemgetter(0)):
        yield queue, max(end for _, end in ends)


def _ends_of(database: Database, generation: int) -> Iterator[tuple[bytes, int]]:
    """Yield digest and end of each index entry of a generation."""
    prefix = by_generation(QUEUES, generation)
    for key, references in database.scan(prefix, prefix):
        first = _U64.unpack(key[QUEUE_PREFIX:])[0]
        yield key[_BEHIND_VIEW:QUEUE_PREFIX], first + len(references) // REFERENCE


def _references(database: Database, oldest: int) -> Iterator[bytes]:
    """Yield the references of all queues from the generation `oldest` on. Around those of a queue in a generation are
    the key of the first row and the number of references."""
    queue, count = b"", 0
    for key, references in database.scan(QUEUES, by_generation(QUEUES, oldest)):
        if key[:QUEUE_PREFIX] != queue:
            yield _U64.pack(count) + key
            queue, count = key[:QUEUE_PREFIX], 0
        count += len(references) // REFERENCE
        yield references
    yield _U64.pack(count)


def _plain(view: bytes, value: bytes) -> bytes:
    """A row as it is without copies of records."""
    if view == HELD:
        return without_copy(value)
    if view == RETAINED:
        return _RETAINED.pack(*record_in(value), entered_at(value))
    return value
