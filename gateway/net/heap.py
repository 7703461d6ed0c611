"""Tells glibc where big buffers come from and when to give memory back, and Python how often to look for garbage.

Other C libraries are left alone.

Memory that is fresh from the kernel costs a page fault and a page of zeros for each 4 KiB. With batches of half a
megabyte this was a tenth of the cost of receiving messages. So big buffers come from the heap, which keeps freed
memory. The buffers of TLS connections are the exception, because little of them is used (decisions/0016).
"""

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h of glibc
_M_MMAP_THRESHOLD: Final = -3
_LARGEST: Final = 32 << 20  # bytes that may come from the heap: as many as glibc allows
# Bytes at the heap's end that stay with the process: the buffers of two replies with a page of the log each.
_KEPT: Final = 8 << 20
_KEPT_BESIDE_TLS: Final = 128 << 10  # less than a TLS buffer: one that fits there would not be mapped
_TLS_BUFFER: Final = 256 << 10  # bytes: uvloop's buffer for each TLS connection, of which little is used
# Allocations between collections of garbage cycles. Messages make no cycles, and Python's default of 700 costs a tenth
# of the CPU with a thousand connections. Each collection blocks the loop: 10,000 objects take a few ms.
_GC_THRESHOLDS: Final = (10_000, 10, 100)


def collect_seldom() -> None:
    """Look for garbage seldom, and not among what there is now. Call it when a process has started."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def prepare_heap(has_tls: bool) -> bool:
    """Have big buffers come from the heap. Returns False if the C library cannot."""
    kept = _KEPT_BESIDE_TLS if has_tls else _KEPT
    return _set(_M_TRIM_THRESHOLD, kept) and keep_big_buffers()


def map_big_buffers() -> bool:
    """Have buffers as large as those of TLS connections come from the kernel, until `keep_big_buffers`.

    The kernel counts only the pages that are used: an idle TLS connection costs 24 KB instead of 52 KB.
    Returns False if the C library cannot.
    """
    return _set(_M_MMAP_THRESHOLD, _TLS_BUFFER)


def keep_big_buffers() -> bool:
    """Have big buffers come from the heap again."""
    return _set(_M_MMAP_THRESHOLD, _LARGEST)


def _set(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(option, value))
    except (OSError, AttributeError):
        return False
