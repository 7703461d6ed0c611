"""The key view: which messages have a business key, the MQTT 5 user property `key`.

A row per key of a message: bucket `k` and the generation of the record's position, name the key's digest and the
position; value the record's length. So a generation's rows go with its index entries in one range delete, and the
messages of a key lie in order of the log within each generation. A digest stands for parent topic and key; two of
them may share one: whoever reads the record compares.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from record import keys_of
from store.views.index import KEYS, Index, by_generation
from store.views.state import State

_DIGEST: Final = 8  # bytes


def key_digest(parent: bytes, key: bytes) -> bytes:
    """What stands for a key of a parent topic in rows, 8 bytes."""
    return blake2b(parent + b"\0" + key, digest_size=_DIGEST).digest()


def key_digests(parent: bytes, properties: bytes) -> list[bytes]:
    """Digests of all that a message can be found by."""
    return [key_digest(parent, key) for key in keys_of(properties)]


class Keys:
    """Messages by key."""

    __slots__ = ("_generation_bytes", "_index", "_state")

    def __init__(self, state: State, index: Index, generation_bytes: int) -> None:
        self._state = state
        self._index = index  # knows which generations there are
        self._generation_bytes = generation_bytes

    def enter(self, digests: Iterable[bytes], position: int, length: int) -> None:
        """A message that enters its queues, by where its record is, can be found by these keys from now on."""
        bucket = by_generation(KEYS, position // self._generation_bytes)
        where = position.to_bytes(8, "big")
        row = length.to_bytes(4, "big")
        for digest in digests:
            self._state.put(bucket, digest + where, row)

    def find(self, digest: bytes, after: int, limit: int, looks: int) -> tuple[list[tuple[int, int]], int | None]:
        """(position, length) of up to `limit` messages with the digest behind position `after`, oldest first, found
        by looking into no more than `looks` generations; and the position to go on behind, None at the end."""
        found: list[tuple[int, int]] = []
        start = max(after + 1, self._index.begin)
        for generation in range(start // self._generation_bytes, self._index.newest + 1):
            if looks == 0:
                return found, generation * self._generation_bytes - 1
            looks -= 1
            rows = self._state.rows(by_generation(KEYS, generation), digest)
            is_at_row = rows.seek(digest + start.to_bytes(8, "big"))
            while is_at_row:
                if len(found) == limit:
                    return found, found[-1][0]
                found.append((int.from_bytes(rows.name[_DIGEST:], "big"), int.from_bytes(rows.value, "big")))
                is_at_row = rows.next()
        return found, None
