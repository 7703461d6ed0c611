"""From options to pieces: what there is to read, where it begins and ends, and how it is cut into tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cloud_sdk.blocking import Client
from streaming.history.index import HistoryIndex
from streaming.history.manifest import HistoryFile, Span
from streaming.source.offsets import DataLossError, Holding, Offsets, Partition, begins, ends
from streaming.source.options import Edge, Moment, Place
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
    """Offsets [start, end) of one partition, of those in a file of a history."""

    history: str
    path: str
    parent: str
    partition: int
    start: int
    end: int
    selection: TopicSelection = ALL_TOPICS


@dataclass(slots=True, frozen=True)
class Joined:
    """Ranges one behind the other: a part of a partition that lies in files and in the log, or nowhere any more."""

    parts: tuple[LogRange | FileRange, ...]


# The work of one task. Each kind is a small class here, and has its branch in `reading.read_piece`.
Piece = LogRange | FileRange | Joined


def holdings_of(client: Client, index: HistoryIndex, topics: Topics) -> list[Holding]:
    """What each partition of the parent topics holds now, and held before as far as that is in a history."""
    if topics.parents is not None:
        parents = topics.matching(topics.parents)
    else:
        parents = topics.matching(sorted({*client.parents(), *index.parents()}))
    holdings: list[Holding] = []
    for parent in parents:
        # The history first: what it ends with is in the log then, which only grows.
        spans, bounds = index.spans(parent), client.partitions(parent)
        if any(each.partition in spans and spans[each.partition].end < each.begin for each in bounds):
            spans, bounds = index.spans(parent, anew=True), client.partitions(parent)  # retention, behind an exporter
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
    """Where each partition is begun at; one that is not named begins at its first record."""
    return _places(client, index, place, holdings, begins(holdings))


def stops(client: Client, index: HistoryIndex, place: Place, holdings: Sequence[Holding]) -> Offsets:
    """Where a batch ends; a partition that is not named ends where it does now."""
    return _places(client, index, place, holdings, ends(holdings))


def offset_at(client: Client, index: HistoryIndex, partition: Partition, time_ms: int) -> int:
    """Of the first record of a partition that was stored at or after a time; its end when none is that young."""
    found = index.offset_at(*partition, time_ms)
    return client.offset_at(*partition, max(time_ms, 0)) if found is None else found  # the log has no time before 1970


def pieces(start: Offsets, end: Offsets, records_per_task: int, topics: Topics, index: HistoryIndex) -> list[Piece]:
    """Ranges that cover [start, end) of each partition, each of at most `records_per_task` offsets. What is in files of
    a history is read there; what that knows to be lost is left out.

    Where they are cut depends on nothing else, so that a batch that is done again has the same rows in the same task,
    also when an exporter went on meanwhile: the sink counts on it.
    """
    cut: list[Piece] = []
    for parent, number in sorted(end):
        first, stop = start.get((parent, number), 0), end[parent, number]
        span = index.span(parent, number)
        files = index.files(parent, number, first, stop)
        for low, high in _steps(first, stop, records_per_task):
            whole = LogRange(parent, number, low, high, topics.selection(parent))
            parts = [whole] if span is None else list(_parts(whole, span, files, index.uri or ""))
            cut.append(parts[0] if len(parts) == 1 else Joined(tuple(parts)))
    return cut


def _parts(whole: LogRange, span: Span, files: Sequence[HistoryFile], uri: str) -> Iterator[LogRange | FileRange]:
    """Where a range of a partition is, in the order of its offsets."""
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
    return {**default, **place}
