"""The lag of a stream by partition: what the log holds behind the records that were planned last."""

import time
from dataclasses import dataclass
from typing import Any, Final

from cloud_sdk.arrow import record_batch, schema_of
from cloud_sdk.blocking import Client
from cloud_sdk.errors import SluiceError
from streaming.source.offsets import Offsets, Partition

_SAMPLE_RECORDS: Final = 64
_SAMPLE_BYTES: Final = 64 << 10
_MOST_SAMPLED: Final = 64  # partitions, those with the most records first; a sample is a read of the node


@dataclass(slots=True, frozen=True)
class PartitionLag:
    """What is not read yet of a partition. Bytes and seconds are None where they were not measured."""

    records: int
    bytes: int | None = None  # of the log, estimated from the first records (up to 64)
    seconds: float | None = None  # since the first of them was stored


def lags(client: Client, reached: Offsets, available: Offsets) -> dict[Partition, PartitionLag]:
    """Measure the lag of each partition that has one. `reached` are the next offsets to read, and `available` the ends
    of the log."""
    behind = {each: end - reached.get(each, 0) for each, end in available.items() if end > reached.get(each, 0)}
    most = sorted(behind, key=lambda each: -behind[each])[:_MOST_SAMPLED]
    sampled = {each: _sampled(client, each, reached.get(each, 0), behind[each]) for each in most}
    return {each: sampled.get(each) or PartitionLag(count) for each, count in behind.items()}


def lags_to_json(found: dict[Partition, PartitionLag]) -> dict[str, dict[str, dict[str, object]]]:
    value: dict[str, dict[str, dict[str, object]]] = {}
    for (parent, number), each in sorted(found.items()):
        row = {"records": each.records, "bytes": each.bytes, "seconds": each.seconds}
        value.setdefault(parent, {})[str(number)] = {name: item for name, item in row.items() if item is not None}
    return value


def lags_from_json(value: Any) -> dict[Partition, PartitionLag]:
    """Parse `lags_to_json`. Raises `ValueError`, `TypeError` or `AttributeError` for anything else."""
    return {
        (parent, int(number)): PartitionLag(**row)
        for parent, numbers in value.items()
        for number, row in numbers.items()
    }


def _sampled(client: Client, partition: Partition, offset: int, count: int) -> PartitionLag:
    try:
        page = client.pull(*partition, offset, max_records=_SAMPLE_RECORDS, max_bytes=_SAMPLE_BYTES)
    except SluiceError:  # it is a report: the tasks say what is wrong
        return PartitionLag(count)
    if not page.count:
        return PartitionLag(count)
    stored = record_batch(page.frames, partition[1], page.offset, schema=schema_of(["stored_at"])).column(0)
    age = time.time() - stored[0].value / 1_000_000
    return PartitionLag(count, count * len(page.frames) // page.count, round(max(age, 0.0), 3))
