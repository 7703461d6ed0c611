"""The key view: messages by business key, which is the MQTT 5 user property `key`.

Each key of a message has a row. Its table is `k` and the generation of the record's position, its name the key's
digest and the position, its value the record's length. So one range delete drops a generation's rows together with
its index entries, and the messages of a key are in the order of the log. A digest stands for a parent topic and a
key. Two keys may have the same digest, so readers have to compare the key in the record.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from record import keys_of
from store.views.database.state import State
from store.views.queues.index import KEYS, Index, by_generation

_DIGEST: Final = 8  # bytes


def key_digest(parent: bytes, key: bytes) -> bytes:
    """The digest of a parent topic and a key, 8 bytes."""
    return blake2b(parent + b"\0" + key, digest_size=_DIGEST).digest()


def key_digests(parent: bytes, properties: bytes) -> list[bytes]:
    """The digests of all keys of a message."""
    return [key_digest(parent, key) for key in keys_of(properties)]


class Keys:
    """Messages by key."""

    __slots__ = ("_generation_bytes", "_index", "_state")

    def __init__(self, state: State, index: Index, generation_bytes: int) -> None:
        self._state = state
        self._index = index  # knows the existing generations
        self._generation_bytes = generation_bytes

    def enter(self, digests: Iterable[bytes], position: int, length: int) -> None:
        """Add a message that enters its queues, with the position and length of its record."""
        table = by_generation(KEYS, position // self._generation_bytes)
        where = position.to_bytes(8, "big")
        row = length.to_bytes(4, "big")
        for digest in digests:
            self._state.put(table, digest + where, row)

    def find(self, digest: bytes, after: int, limit: int, max_rows: int) -> tuple[list[tuple[int, int]], int | None]:
        """Find up to `limit` messages with the digest after position `after`, oldest first, in up to `max_rows`
        generations.

        Returns their (position, length), and the position to continue after; None at the end.
        """
        found: list[tuple[int, int]] = []
        start = max(after + 1, self._index.begin)
        for generation in range(start // self._generation_bytes, self._index.newest + 1):
            if max_rows == 0:
                return found, generation * self._generation_bytes - 1
            max_rows -= 1
            rows = self._state.rows(by_generation(KEYS, generation), digest)
            is_at_row = rows.seek(digest + start.to_bytes(8, "big"))
            while is_at_row:
                if len(found) == limit:
                    return found, found[-1][0]
                found.append((int.from_bytes(rows.name[_DIGEST:], "big"), int.from_bytes(rows.value, "big")))
                is_at_row = rows.next()
        return found, None
