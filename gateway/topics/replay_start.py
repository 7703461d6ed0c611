"""Where the replay of a subscription starts: parses what a client asks for, and finds the position.

`$replay/<from>/<filter>`, or the user property `replay` of a SUBSCRIBE, where `<from>` is `earliest`, a time
(`2025-06-01T11:59:00Z`, or ms since 1970), seconds ago (`-3600`), or `offset:N` of an exact topic.
"""

from datetime import UTC, datetime
from typing import Final, NamedTuple

from matcher.names import has_wildcard, is_valid_filter
from matcher.reserved import REPLAY, filter_of, is_below
from store.api import MessageStore, topic_queue

PROPERTY: Final = b"replay"  # the user property of a SUBSCRIBE

_OFFSET: Final = b"offset:"
_DIGITS: Final = 18


class NoSuchStart(Exception):
    """The replay cannot start there. The message says which offsets exist."""


class ReplayStart(NamedTuple):
    """An offset, or else a time; time 0 is the earliest message."""

    offset: int | None = None
    time_ms: int = 0


def split_replay(topic_filter: bytes) -> tuple[bytes, bytes]:
    """Split `$replay/<from>/<filter>` into (from, filter), which are both empty if the form is wrong.

    Any other filter is returned as (b"", filter).
    """
    inner = filter_of(topic_filter)
    if not inner:
        return b"", b"" if is_below(topic_filter, REPLAY) else topic_filter
    words, _, wanted = inner.partition(b"/")
    return (words, wanted) if words and wanted and is_valid_filter(wanted) else (b"", b"")


def parse_start(words: bytes, topic_filter: bytes, now_ms: int) -> ReplayStart | None:
    """Parse the `<from>` of a client. None: it is invalid."""
    if words == b"earliest":
        return ReplayStart()
    if words.startswith(_OFFSET):
        number = words[len(_OFFSET) :]
        is_offset = number.isdigit() and len(number) <= _DIGITS and not has_wildcard(topic_filter)
        return ReplayStart(int(number)) if is_offset else None
    number = words.removeprefix(b"-")
    if number.isdigit():
        if len(number) > _DIGITS:
            return None
        return ReplayStart(None, max(0, now_ms - int(number) * 1000) if words != number else int(number))
    try:
        time = datetime.fromisoformat(words.decode())
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    try:
        return ReplayStart(None, max(0, int(time.timestamp() * 1000)))
    except OverflowError:
        return None


async def resolve_start(store: MessageStore, topic_filter: bytes, start: ReplayStart) -> tuple[int, int]:
    """Return (start, current end): offsets in the queue of a topic, or log positions for a wildcard filter.

    Messages that retention has removed behind an offset are counted when the subscription reads them. Raises
    NoSuchStart, StoreError.
    """
    if has_wildcard(topic_filter):
        stats = store.stats()
        if not start.time_ms:
            return stats.log_begin, stats.log_end
        return await store.position_at(start.time_ms), stats.log_end
    queue = topic_queue(topic_filter)
    bounds = await store.bounds(queue)
    if start.offset is None:
        return bounds.begin if not start.time_ms else await store.offset_at(queue, start.time_ms), bounds.end
    if start.offset > bounds.end:
        raise NoSuchStart(f"the topic has offsets from {bounds.begin} to {bounds.end}")
    return start.offset, bounds.end
