"""Which queue the flush thread has: where `_flush_queue.pyx` is compiled, it writes small batches without Python."""

from typing import TYPE_CHECKING

from store.log.disk import Disk

__all__ = ["FlushQueue", "native_queue"]

if TYPE_CHECKING:
    from store.log._flush_queue import FlushQueue
else:
    try:
        from store.log._flush_queue import FlushQueue
    except ImportError:
        FlushQueue = None


def native_queue(disk: Disk) -> "FlushQueue | None":
    """A queue that writes to the files of `disk` by itself; None where it is not compiled, and for a disk of tests.

    Raises OSError.
    """
    return FlushQueue() if FlushQueue is not None and type(disk) is Disk else None
