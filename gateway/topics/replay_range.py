"""What a replay covers: parses what a client asks for, and finds the places.

`$replay/<from>/<filter>`, or the user property `replay` of a SUBSCRIBE, where `<from>` is `earliest`, a time
(`2025-06-01T11:59:00Z`, or ms since 1970), seconds ago (`-3600`), or `offset:N` of an exact topic. Such a replay
continues to the present. `<from>..<to>` ends in front of `<to>`, which is `now`, a time or an offset.
"""

from datetime import UTC, datetime
from typing import Final, NamedTuple

from matcher.names import has_wildcard, is_valid_filter
from matcher.reserved import REPLAY, filter_of, is_below
from store.api import MessageStore, topic_queue

PROPERTY: Final = b"replay"  # the user property of a SUBSCRIBE
INFO_PROPERTY: Final = b"replay-info"  # another one: replayed messages say when and where they were stored

_OFFSET: Final = b"offset:"
_DIGITS: Final = 18


class NoSuchStart(Exception):
    """The replay cannot start there. The message says which offsets exist."""


class ReplayPlace(NamedTuple):
    """An offset, or else a time; time 0 is before the earliest message."""

    offset: int | None = None
    time_ms: int = 0


def split_replay(topic_filter: bytes) -> tuple[bytes, bytes]:
    """Split `$replay/<from>/<filter>` into (from, filter), which are both empty if the form is wrong. The first one
    is `<from>..<to>` if the replay has an end.

    Any other filter is returned as (b"", filter).
    """
    inner = filter_of(topic_filter)
    if not inner:
        return b"", b"" if is_below(topic_filter, REPLAY) else topic_filter
    words, _, wanted = inner.partition(b"/")
    return (words, wanted) if words and wanted and is_valid_filter(wanted) else (b"", b"")


def is_bounded(words: bytes) -> bool:
    """Whether the replay has an end."""
    return b".." in words


def parse_start(words: bytes, topic_filter: bytes, now_ms: int) -> ReplayPlace | None:
    """Parse the `<from>` of a client. None: it is invalid."""
    return ReplayPlace() if words == b"earliest" else _parse_place(words, topic_filter, now_ms)


def parse_bounds(words: bytes, topic_filter: bytes, now_ms: int) -> tuple[ReplayPlace, ReplayPlace] | None:
    """Parse the `<from>..<to>` of a client. None: it is invalid, or ends before it begins."""
    first, _, last = words.partition(b"..")
    start = parse_start(first, topic_filter, now_ms)
    end = ReplayPlace(None, now_ms) if last == b"now" else _parse_place(last, topic_filter, now_ms)
    if start is None or end is None:
        return None
    if start.offset is not None and end.offset is not None:
        return (start, end) if start.offset <= end.offset else None
    is_backwards = start.offset is None and end.offset is None and start.time_ms > end.time_ms
    return None if is_backwards else (start, end)


def _parse_place(words: bytes, topic_filter: bytes, now_ms: int) -> ReplayPlace | None:
    if words.startswith(_OFFSET):
        number = words[len(_OFFSET) :]
        is_offset = number.isdigit() and len(number) <= _DIGITS and not has_wildcard(topic_filter)
        return ReplayPlace(int(number)) if is_offset else None
    number = words.removeprefix(b"-")
    if number.isdigit():
        if len(number) > _DIGITS:
            return None
        return ReplayPlace(None, max(0, now_ms - int(number) * 1000) if words != number else int(number))
    try:
        time = datetime.fromisoformat(words.decode())
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    try:
        return ReplayPlace(None, max(0, int(time.timestamp() * 1000)))
    except OverflowError:
        return None


async def resolve_start(store: MessageStore, topic_filter: bytes, start: ReplayPlace) -> tuple[int, int]:
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


async def resolve_bounds(
    store: MessageStore, topic_filter: bytes, start: ReplayPlace, end: ReplayPlace, now_ms: int
) -> tuple[int, int]:
    """Return (start, end) as `resolve_start` does. An end that has not come yet is the current one, and an end before
    the start is the start. Raises NoSuchStart, StoreError."""
    if has_wildcard(topic_filter):
        first = await store.position_at(start.time_ms)
        last = await store.position_at(end.time_ms) if end.time_ms < now_ms else store.stats().log_end
        return first, max(first, last)
    first, last = await resolve_start(store, topic_filter, start)
    if end.offset is not None:
        last = min(last, end.offset)
    elif end.time_ms < now_ms:
        last = min(last, await store.offset_at(topic_queue(topic_filter), end.time_ms))
    return first, max(first, last)
