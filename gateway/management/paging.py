"""Pages of lists, and slices of work between which devices have their turn."""

import asyncio
from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from typing import Final

from google.protobuf.message import Message

from gateway.rpc.status import invalid

MAX_PAGE: Final = 1000  # rows
AT_ONCE: Final = 32  # rows that are read in one turn of the loop
_NAMES_AT_ONCE: Final = 16_384  # names that are compared in one turn of the loop


def page_size(limit: int, default: int = 100) -> int:
    """The number of rows of a page. 0 requests the default. Raises `RequestError`."""
    if limit > MAX_PAGE:
        raise invalid(f"a page has at most {MAX_PAGE} rows, and the limit is {limit}")
    return limit or default


def after_of(request: Message) -> bytes | None:
    """Where the last page ended, or None for the first one."""
    if not request.HasField("after"):
        return None
    after: str = request.after  # type: ignore[attr-defined]
    return after.encode()


def before(prefix: bytes) -> bytes | None:
    """The name to begin after, so that the first one found is the first that begins with the prefix."""
    return prefix[:-1] + bytes((prefix[-1] - 1,)) + b"\xff" if prefix and prefix[-1] else None


def latest(*names: bytes | None) -> bytes | None:
    """The last one of names to begin after."""
    return max((name for name in names if name is not None), default=None)


async def first_names(names: Iterable[bytes], after: bytes | None, prefix: bytes, limit: int) -> list[bytes]:
    """Up to `limit` of the names behind `after` that begin with `prefix`, sorted. `names` does not change meanwhile."""
    found: list[bytes] = []
    left = iter(names)
    while some := list(islice(left, _NAMES_AT_ONCE)):
        found += [name for name in some if name.startswith(prefix) and (after is None or name > after)]
        found = nsmallest(limit, found)
        await asyncio.sleep(0)
    return found
