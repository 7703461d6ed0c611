"""From options to pieces: what there is to read, where it begins and ends, and how it is cut into tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloud_sdk.blocking import Client
from streaming.source.offsets import Holding, Offsets, begins, ends
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


# The work of one task. Each kind is a small class here, and has its branch in `reading.read_piece`.
Piece = LogRange


def holdings_of(client: Client, topics: Topics) -> list[Holding]:
    """What each partition of the parent topics holds now."""
    parents = topics.matching(topics.parents if topics.parents is not None else client.parents())
    return [
        Holding((parent, each.partition), each.begin, each.end)
        for parent in parents
        for each in client.partitions(parent)
    ]


def starts(client: Client, place: Place, holdings: Sequence[Holding]) -> Offsets:
    """Where each partition is begun at; one that is not named begins at its first record."""
    return _places(client, place, holdings, begins(holdings))


def stops(client: Client, place: Place, holdings: Sequence[Holding]) -> Offsets:
    """Where a batch ends; a partition that is not named ends where it does now."""
    return _places(client, place, holdings, ends(holdings))


def pieces(start: Offsets, end: Offsets, records_per_task: int, topics: Topics) -> list[Piece]:
    """Ranges that cover [start, end) of each partition, each of at most `records_per_task` offsets."""
    cut: list[Piece] = []
    for parent, number in sorted(end):
        first, stop = start.get((parent, number), 0), end[parent, number]
        if first < stop:
            wanted = topics.wanted(parent)
            cut += (
                LogRange(parent, number, low, min(low + records_per_task, stop), wanted)
                for low in range(first, stop, records_per_task)
            )
    return cut


def _places(client: Client, place: Place, holdings: Sequence[Holding], default: Offsets) -> Offsets:
    if isinstance(place, Edge):
        return begins(holdings) if place is Edge.EARLIEST else ends(holdings)
    if isinstance(place, Moment):
        return {each.partition: client.offset_at(*each.partition, place.ms) for each in holdings}
    return {**default, **place}
