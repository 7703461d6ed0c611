"""Where the C library takes big buffers from."""

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3  # malloc.h of glibc
_TLS_BUFFER: Final = 256 * 1024  # bytes: uvloop has one of this size for each TLS connection, and uses little of it


def map_big_buffers() -> bool:
    """Have buffers of TLS connections come fresh from the kernel, which counts only the pages that are used.

    By itself glibc takes them from its heap once any such buffer was freed, where used pages stay with the process:
    an idle TLS connection costs 52 KB then, and 28 KB so. Whether the C library knows how; others than glibc do not.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _TLS_BUFFER))
    except (OSError, AttributeError):
        return False
