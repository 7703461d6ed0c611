"""Leases of messages and their settlement, as the wire carries them: neighbouring offsets are joined to runs."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from cloud_sdk.errors import check_delay
from cloud_sdk.proto import sluice_pb2 as pb

_MAX_ERROR: Final = 256  # bytes


class Lease(NamedTuple):
    """One delivery of a message to a member of the group."""

    partition: int
    offset: int
    deliveries: int  # how often the message was leased out, this time included


class Returned(NamedTuple):
    """A lease that is given back or extended."""

    lease: Lease
    delay_ms: int | None  # None: the node's, which grows with the deliveries
    error: str = ""  # why the message failed
    is_last: bool = False  # it becomes a dead letter at once


class Settlement(NamedTuple):
    """What one request settles."""

    done: list[Lease]
    again: list[Returned]
    unseen: list[Lease]  # given back before a handler saw them: the delivery does not count
    extends: bool = False  # the leases `again` are extended; their messages have not failed

    @property
    def size(self) -> int:
        """How many messages it settles."""
        return len(self.done) + len(self.again) + len(self.unseen)


def leases_of(runs: Iterable[pb.Run]) -> list[Lease]:
    """The leases of runs."""
    return [
        Lease(run.partition, offset, run.deliveries)
        for run in runs
        for offset in range(run.offset, run.offset + run.count)
    ]


def runs_of(leases: Iterable[Lease]) -> list[pb.Run]:
    """Leases as runs. Messages that are settled together were mostly received together, so runs are long."""
    runs: list[pb.Run] = []
    of, first, end, count = -1, 0, 0, 0  # the run so far: partition, offsets [first, end), deliveries
    for partition, offset, deliveries in sorted(leases):
        if offset == end and partition == of and deliveries == count:
            end += 1
            continue
        if end > first:
            runs.append(pb.Run(partition=of, offset=first, count=end - first, deliveries=count))
        of, first, end, count = partition, offset, offset + 1, deliveries
    if end > first:
        runs.append(pb.Run(partition=of, offset=first, count=end - first, deliveries=count))
    return runs


def postponed_of(settlement: Settlement) -> list[pb.Postponed]:
    """What a settlement gives back, as runs of equal delay and error."""
    by_delay: dict[tuple[int | None, str, bool], list[Lease]] = {}
    for lease, delay, error, is_last in settlement.again:
        by_delay.setdefault((delay, error, is_last), []).append(lease)
    postponed = [
        pb.Postponed(run=run, delay_ms=delay, extends=settlement.extends, error=error, last=is_last)
        for (delay, error, is_last), some in by_delay.items()
        for run in runs_of(some)
    ]
    return postponed + [pb.Postponed(run=run, delay_ms=0, unseen=True) for run in runs_of(settlement.unseen)]


def error_text(error: str) -> str:
    """An error as the wire takes it: the beginning of a long one."""
    return error.encode(errors="replace")[:_MAX_ERROR].decode(errors="ignore")


def milliseconds(seconds: float) -> int:
    """A delay on the wire. Raises `InvalidArgument` if it is negative or too long."""
    check_delay(seconds)
    return int(seconds * 1_000)
