"""Blocks of segment objects in memory, for all who read them. For any thread."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from store.errors import StoreError

Key = tuple[str, int]  # name of an object, and number of a block in it


class _Load:
    """A block that a thread is about to get. Others wait for it."""

    __slots__ = ("block", "done", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.block: bytes | None = None
        self.error: StoreError | None = None


class BlockCache:
    """The blocks that were used last, of at most `limit` bytes. A block that several ask for is loaded once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, bytes] = OrderedDict()  # the one that was used last comes last
        self._loads: dict[Key, _Load] = {}
        self.size = 0  # bytes
        self.hits = 0  # blocks that were here, or on their way

    def has(self, key: Key) -> bool:
        """Whether a block is here. It does not count as used."""
        with self._lock:
            return key in self._blocks

    def get(self, key: Key, load: Callable[[], list[tuple[Key, bytes]]]) -> bytes:
        """The block of a key. `load` gets it if it is not here, and others that may be wanted next; it comes first.

        Raises what `load` does, a `StoreError`, for all who wait for it.
        """
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
                self.hits += 1
                return block
            known = self._loads.get(key)
            if known is None:
                own = self._loads[key] = _Load()
            else:
                self.hits += 1
        return self._load(key, own, load) if known is None else _wait(known)

    def _load(self, key: Key, own: _Load, load: Callable[[], list[tuple[Key, bytes]]]) -> bytes:
        try:
            found = load()
            own.block = found[0][1]
        except StoreError as error:
            own.error = error
            raise
        except BaseException:
            own.error = StoreError("the thread that read this block has failed")
            raise
        finally:
            with self._lock:
                del self._loads[key]
                if own.block is not None:
                    for each, block in reversed(found):  # what comes next goes first if there is no room
                        self._keep(each, block)
            own.done.set()
        return own.block

    def _keep(self, key: Key, block: bytes) -> None:
        if key in self._blocks:
            return
        self._blocks[key] = block
        self.size += len(block)
        while self.size > self._limit and self._blocks:
            _, oldest = self._blocks.popitem(last=False)
            self.size -= len(oldest)


def _wait(known: _Load) -> bytes:
    known.done.wait()
    if known.error is not None:
        raise known.error
    assert known.block is not None
    return known.block
