"""Turns writes to a segment into whole pages: direct writes need that, and buffered ones then read no old page."""

import mmap
from collections.abc import Callable
from typing import Final

PAGE: Final = 4096  # bytes; a multiple of a device's block, and a divisor of each segment's size
_SIZE: Final = 1 << 20  # bytes of one write
_ZEROS: Final = bytes(PAGE)


class Pages:
    """A buffer aligned to pages. Between writes it keeps the written bytes of the last, partial page."""

    __slots__ = ("_buffer", "_end", "_kept")

    def __init__(self) -> None:
        self._buffer = memoryview(mmap.mmap(-1, _SIZE))
        self._kept = 0  # bytes of the partial page, at the start of the buffer
        self._end = 0  # bytes of the buffer that `fill` has filled, without the zeros

    def begin(self, kept: bytes) -> None:
        """Start with a partial page that has the bytes `kept`. The next write follows them."""
        assert len(kept) < PAGE
        self._kept = len(kept)
        self._buffer[: len(kept)] = kept

    def write(self, data: bytes, offset: int, put: Callable[[memoryview, int], None]) -> None:
        """Write `data` at `offset` of the segment, directly behind the last write.

        Calls `put` with whole pages, which are valid until it returns, and their offset.
        """
        assert self._kept == offset % PAGE
        left = memoryview(data)
        start = offset - self._kept
        while left:
            piece = left[: _SIZE - self._kept]
            left = left[len(piece) :]
            put(self.fill(piece), start)
            start += self.keep()

    def fill(self, data: bytes | memoryview) -> memoryview:
        """Return whole pages that end with `data` and zeros. They are valid until `keep`, which has to follow.

        There is room for 1 MiB less a page.
        """
        buffer, kept = self._buffer, self._kept
        end = kept + len(data)
        whole = end + -end % PAGE
        buffer[kept:end] = data
        buffer[end:whole] = _ZEROS[: whole - end]
        self._end = end
        return buffer[:whole]

    def keep(self) -> int:
        """Keep the partial page of what `fill` returned. Returns the bytes of full pages before it."""
        end = self._end
        kept = end % PAGE
        self._buffer[:kept] = self._buffer[end - kept : end]
        self._kept = kept
        return end - kept
