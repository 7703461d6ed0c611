"""Leases of messages, and what settles them, as the wire has them: neighbours together."""

from collections.abc import Iterable
from typing import NamedTuple

from cloud_sdk.errors import check_delay
from cloud_sdk.proto import sluice_pb2 as pb


class Lease(NamedTuple):
    """Which message is leased, and for the how manieth time."""

    partition: int
    offset: int
    deliveries: int


class Settlement(NamedTuple):
    """What one request settles."""

    done: list[Lease]
    again: list[tuple[Lease, int | None]]  # with the delay in ms


def leases_of(runs: Iterable[pb.Run]) -> list[Lease]:
    return [
        Lease(run.partition, offset, run.deliveries)
        for run in runs
        for offset in range(run.offset, run.offset + run.count)
    ]


def runs_of(leases: Iterable[Lease]) -> list[pb.Run]:
    """Neighbours together: what is acknowledged at once was mostly received at once."""
    runs: list[pb.Run] = []
    own, first, end, count = -1, 0, 0, 0  # the run so far: partition, offsets [first, end), deliveries
    for partition, offset, deliveries in sorted(leases):
        if offset == end and partition == own and deliveries == count:
            end += 1
            continue
        if end > first:
            runs.append(pb.Run(partition=own, offset=first, count=end - first, deliveries=count))
        own, first, end, count = partition, offset, offset + 1, deliveries
    if end > first:
        runs.append(pb.Run(partition=own, offset=first, count=end - first, deliveries=count))
    return runs


def postponed(again: Iterable[tuple[Lease, int | None]]) -> list[pb.Postponed]:
    by_delay: dict[int | None, list[Lease]] = {}
    for lease, delay in again:
        by_delay.setdefault(delay, []).append(lease)
    return [pb.Postponed(run=run, delay_ms=delay) for delay, some in by_delay.items() for run in runs_of(some)]


def milliseconds(seconds: float) -> int:
    check_delay(seconds)
    return int(seconds * 1_000)
