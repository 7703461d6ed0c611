"""What is written to a segment, as whole pages: what a direct write asks for, and what spares a buffered one to read
the page that it ends in."""

import mmap
from collections.abc import Callable
from typing import Final

PAGE: Final = 4096  # bytes; a multiple of what devices write at once, and a part of every segment's size
_SIZE: Final = 1 << 20  # bytes of pages that are written at once
_ZEROS: Final = bytes(PAGE)


class Pages:
    """Pages in memory that begins where one does. It keeps what is in the page that is written next: before the end of
    what was written; behind it are zeros."""

    __slots__ = ("_buffer", "_kept")

    def __init__(self) -> None:
        self._buffer = memoryview(mmap.mmap(-1, _SIZE))
        self._kept = 0  # bytes of the next page that are written, at the buffer's begin

    def begin(self, kept: bytes) -> None:
        """What is written next goes behind `kept`, in its page."""
        assert len(kept) < PAGE
        self._kept = len(kept)
        self._buffer[: len(kept)] = kept

    def write(self, data: bytes, offset: int, put: Callable[[memoryview, int], None]) -> None:
        """Write `data` at `offset` of the segment, which is behind what was written last. `put` is called with whole
        pages, which are good until it returns, and where they go."""
        buffer, kept = self._buffer, self._kept
        assert kept == offset % PAGE
        left = memoryview(data)
        start = offset - kept
        while left:
            piece = left[: _SIZE - kept]
            left = left[len(piece) :]
            end = kept + len(piece)
            buffer[kept:end] = piece
            kept = end % PAGE
            whole = end + PAGE - kept if kept else end
            buffer[end:whole] = _ZEROS[: whole - end]
            put(buffer[:whole], start)
            start += end - kept
            buffer[:kept] = buffer[end - kept : end]
        self._kept = kept
