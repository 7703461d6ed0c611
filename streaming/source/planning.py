"""From options to pieces: what there is to read, where it begins and ends, and how it is cut into tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloud_sdk.blocking import Client
from streaming.history.past import Past
from streaming.source.offsets import DataLossError, Holding, Offsets, Partition, begins, ends
from streaming.source.options import Edge, Moment, Place
from streaming.source.topics import EVERYTHING, Topics, Wanted


@dataclass(slots=True, frozen=True)
class LogRange:
    """Offsets [start, end) of one partition, to be pulled from the node."""

    parent: str
    partition: int
    start: int
    end: int
    wanted: Wanted = EVERYTHING


@dataclass(slots=True, frozen=True)
class FileRange:
    """Offsets [start, end) of one partition, of those in a file of a history."""

    history: str
    path: str
    parent: str
    partition: int
    start: int
    end: int
    wanted: Wanted = EVERYTHING


# The work of one task. Each kind is a small class here, and has its branch in `reading.read_piece`.
Piece = LogRange | FileRange


def holdings_of(client: Client, past: Past, topics: Topics) -> list[Holding]:
    """What each partition of the parent topics holds now, and held before as far as that is in a history."""
    if topics.parents is not None:
        parents = topics.matching(topics.parents)
    else:
        parents = topics.matching(sorted({*client.parents(), *past.parents()}))
    holdings: list[Holding] = []
    for parent in parents:
        for each in client.partitions(parent):
            span = past.span(parent, each.partition)
            if span is not None and span.end > each.end:
                raise DataLossError(
                    f"the history of {parent!r} is of another log: partition {each.partition} ends at {each.end} "
                    f"there, and at {span.end} in the history"
                )
            begin = each.begin if span is None else min(each.begin, span.begin)
            holdings.append(Holding((parent, each.partition), begin, each.end))
    return holdings


def starts(client: Client, past: Past, place: Place, holdings: Sequence[Holding]) -> Offsets:
    """Where each partition is begun at; one that is not named begins at its first record."""
    return _places(client, past, place, holdings, begins(holdings))


def stops(client: Client, past: Past, place: Place, holdings: Sequence[Holding]) -> Offsets:
    """Where a batch ends; a partition that is not named ends where it does now."""
    return _places(client, past, place, holdings, ends(holdings))


def offset_at(client: Client, past: Past, partition: Partition, time_ms: int) -> int:
    """Of the first record of a partition that was stored at or after a time; its end when none is that young."""
    found = past.offset_at(*partition, time_ms)
    return client.offset_at(*partition, time_ms) if found is None else found


def pieces(start: Offsets, end: Offsets, records_per_task: int, topics: Topics, past: Past) -> list[Piece]:
    """Ranges that cover [start, end) of each partition, each of at most `records_per_task` offsets. What is in files of
    a history is read there; what that knows to be lost is left out."""
    cut: list[Piece] = []
    for parent, number in sorted(end):
        first, stop = start.get((parent, number), 0), end[parent, number]
        if first < stop:
            wanted = topics.wanted(parent)
            span = past.span(parent, number)
            if span is not None:
                for file in past.files(parent, number, first, stop):
                    cut += (
                        FileRange(past.uri or "", file.path, parent, number, low, high, wanted)
                        for low, high in _steps(max(first, file.begin), min(stop, file.end), records_per_task)
                    )
            in_log = [(first, stop)] if span is None else [(first, min(stop, span.begin)), (max(first, span.end), stop)]
            for low, high in in_log:
                cut += (LogRange(parent, number, *each, wanted) for each in _steps(low, high, records_per_task))
    return cut


def _steps(first: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    return ((low, min(low + size, stop)) for low in range(first, stop, size))


def _places(client: Client, past: Past, place: Place, holdings: Sequence[Holding], default: Offsets) -> Offsets:
    if isinstance(place, Edge):
        return begins(holdings) if place is Edge.EARLIEST else ends(holdings)
    if isinstance(place, Moment):
        return {each.partition: offset_at(client, past, each.partition, place.ms) for each in holdings}
    return {**default, **place}
