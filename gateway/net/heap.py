"""Where the C library takes big buffers from, and when it gives memory back. Only glibc is told; others do as they do.

What comes fresh from the kernel costs a fault and a page of zeros for each 4 KiB: with batches of half a megabyte that
was a tenth of what taking messages in costs. So big buffers come from the heap, which keeps what was freed; but those
of TLS connections, of which little is used (decisions/0016).
"""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h of glibc
_M_MMAP_THRESHOLD: Final = -3
_LARGEST: Final = 32 << 20  # bytes that may come from the heap: as many as glibc allows
_KEPT: Final = 2 << 20  # bytes at the heap's end that stay with the process
_KEPT_BESIDE_TLS: Final = 128 << 10  # less than a buffer of TLS: one that fits there is not mapped
_TLS_BUFFER: Final = 256 << 10  # bytes: uvloop has one of this size for each TLS connection, and uses little of it


def prepare_heap(has_tls: bool) -> bool:
    """Have big buffers come from the heap. Whether the C library knows how."""
    kept = _KEPT_BESIDE_TLS if has_tls else _KEPT
    return _set(_M_TRIM_THRESHOLD, kept) and keep_big_buffers()


def map_big_buffers() -> bool:
    """Have buffers as large as those of TLS connections come fresh from the kernel, which counts only the pages that
    are used, until `keep_big_buffers`. From the heap an idle TLS connection costs 52 KB, and 24 KB so. Whether the
    C library knows how."""
    return _set(_M_MMAP_THRESHOLD, _TLS_BUFFER)


def keep_big_buffers() -> bool:
    """Have them come from the heap again."""
    return _set(_M_MMAP_THRESHOLD, _LARGEST)


def _set(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(option, value))
    except (OSError, AttributeError):
        return False
