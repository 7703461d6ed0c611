"""Planning: the offsets to read, and their division into pieces for tasks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from cloud_sdk.blocking import Client
from streaming.history.index import HistoryIndex
from streaming.history.table import HistoryFile, Span
from streaming.source.offsets import DataLossError, Holding, Offsets, Partition, begins, ends
from streaming.source.options import EARLIEST_OFFSET, LATEST_OFFSET, Edge, Moment, Place
from streaming.source.topics import ALL_TOPICS, Topics, TopicSelection


@dataclass(slots=True, frozen=True)
class LogRange:
    """Offsets [start, end) of one partition, to be pulled from the node."""

    parent: str
    partition: int
    start: int
    end: int
    selection: TopicSelection = ALL_TOPICS


@dataclass(slots=True, frozen=True)
class FileRange:
    """Offsets [start, end) of one partition, in a file of a history."""

    history: str
    path: str
    parent: str
    partition: int
    start: int
    end: int
    selection: TopicSelection = ALL_TOPICS


@dataclass(slots=True, frozen=True)
class JoinedRanges:
    """Ranges that a task reads in turn: consecutive ones of a partition in files and in the log, or those of several
    partitions in which the node looks for one topic. It is empty if all of its records are lost."""

    parts: tuple[LogRange | FileRange, ...]


# The work of one task. `reading.read_piece` has a branch for each kind.
Piece = LogRange | FileRange | JoinedRanges


def holdings_of(client: Client, index: HistoryIndex, topics: Topics) -> list[Holding]:
    """Return the offsets of each partition of the parent topics that are in the log or in a history."""
    if topics.parents is not None:
        parents = topics.matching(topics.parents)
    else:
        parents = topics.matching(sorted({*client.parents(), *index.parents()}))
    holdings: list[Holding] = []
    for parent in parents:
        # Read the history first: its end is in the log then, because the log only grows.
        spans, bounds = index.spans(parent), client.partitions(parent)
        if any(each.partition in spans and spans[each.partition].end < each.begin for each in bounds):
            spans, bounds = index.spans(parent, reload=True), client.partitions(parent)  # exported, then removed
        for each in bounds:
            span = spans.get(each.partition)
            if span is not None and span.end > each.end:
                raise DataLossError(
                    f"the history of {parent!r} is of another log: partition {each.partition} ends at {each.end} "
                    f"there, and at {span.end} in the history"
                )
            begin = each.begin if span is None else min(each.begin, span.begin)
            holdings.append(Holding((parent, each.partition), begin, each.end))
    return holdings


def starts(client: Client, index: HistoryIndex, place: Place, holdings: Sequence[Holding]) -> Offsets:
    """Return the start of each partition; its first record if `place` does not name it."""
    return _places(client, index, place, holdings, begins(holdings))


def stops(client: Client, index: HistoryIndex, place: Place, holdings: Sequence[Holding]) -> Offsets:
    """Return the end of each partition in a batch; its current end if `place` does not name it."""
    return _places(client, index, place, holdings, ends(holdings))


def offset_at(client: Client, index: HistoryIndex, partition: Partition, time_ms: int) -> int:
    """Return the offset of the first record of a partition stored at or after a time, or the end of the partition."""
    found = index.offset_at(*partition, time_ms)
    return client.offset_at(*partition, max(time_ms, 0)) if found is None else found  # the log has no time before 1970


def pieces(
    start: Offsets, end: Offsets, records_per_task: int, topics: Topics, index: HistoryIndex, *, evenly: bool = False
) -> list[Piece]:
    """Return pieces that cover [start, end) of each partition, each of at most `records_per_task` offsets. Records in
    the files of a history are read there, and offsets that it knows to be lost are left out.

    evenly: cut each partition into equal pieces, and return the longest first, so that tasks end together. Where one
    topic is read, the pieces of different partitions are joined. Otherwise all pieces of a partition but the last have
    `records_per_task` offsets.

    The cuts depend on nothing else. So a repeated batch has the same rows in the same task, even if an exporter ran
    meanwhile; the sink depends on this.
    """
    cut: list[Piece] = []
    for parent, number in sorted(end):
        first, stop = start.get((parent, number), 0), end[parent, number]
        span = index.span(parent, number)
        files = index.files(parent, number, first, stop)
        size = records_per_task
        if evenly and stop > first:
            size = ceil((stop - first) / ceil((stop - first) / size))
        for low, high in _steps(first, stop, size):
            whole = LogRange(parent, number, low, high, topics.selection(parent))
            parts = [whole] if span is None else list(_parts(whole, span, files, index.uri or ""))
            cut.append(parts[0] if len(parts) == 1 else JoinedRanges(tuple(parts)))
    return sorted(_joined(cut), key=_length, reverse=True) if evenly else cut


def _joined(cut: Sequence[Piece]) -> list[Piece]:
    """Join the first ranges of all partitions of a parent topic in which the node finds one topic by its index, their
    second ranges, and so on. To start a task takes longer than to find nothing in a million records. A topic is in one
    partition, so no task has more records to read than before, unless messages name ordering keys."""
    others: list[Piece] = []
    ranges: dict[tuple[str, int], list[LogRange]] = {}
    counts: Counter[Partition] = Counter()
    for piece in cut:
        if isinstance(piece, LogRange) and piece.selection.is_one_topic:
            partition = piece.parent, piece.partition
            ranges.setdefault((piece.parent, counts[partition]), []).append(piece)
            counts[partition] += 1
        else:
            others.append(piece)
    return [*others, *(each[0] if len(each) == 1 else JoinedRanges(tuple(each)) for each in ranges.values())]


def _length(piece: Piece) -> int:
    """The number of offsets of a piece."""
    parts = piece.parts if isinstance(piece, JoinedRanges) else (piece,)
    return sum(part.end - part.start for part in parts)


def _parts(whole: LogRange, span: Span, files: Sequence[HistoryFile], uri: str) -> Iterator[LogRange | FileRange]:
    """Divide a range of a partition among the log and files, in the order of offsets."""
    if whole.start < span.begin:
        yield replace(whole, end=min(whole.end, span.begin))
    for file in files:
        low, high = max(whole.start, file.begin), min(whole.end, file.end)
        if low < high:
            yield FileRange(uri, file.path, whole.parent, whole.partition, low, high, whole.selection)
    if span.end < whole.end:
        yield replace(whole, start=max(whole.start, span.end))


def _steps(first: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    return ((low, min(low + size, stop)) for low in range(first, stop, size))


def _places(
    client: Client, index: HistoryIndex, place: Place, holdings: Sequence[Holding], default: Offsets
) -> Offsets:
    if isinstance(place, Edge):
        return begins(holdings) if place is Edge.EARLIEST else ends(holdings)
    if isinstance(place, Moment):
        return {each.partition: offset_at(client, index, each.partition, place.ms) for each in holdings}
    edges = {EARLIEST_OFFSET: begins(holdings), LATEST_OFFSET: ends(holdings)}
    named = {each: edges[offset].get(each, 0) if offset in edges else offset for each, offset in place.items()}
    return {**default, **named}
