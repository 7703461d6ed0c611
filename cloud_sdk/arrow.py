"""Records as Arrow batches: the frames' columns become Arrow buffers without a Python object per record.

Needs pyarrow, which the SDK itself does not: import this module only where it is installed (Spark brings it).
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

import record
from cloud_sdk.properties import decode

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("levels", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),  # client id
        pa.field("qos", pa.int8(), nullable=False),  # the publisher's
        # MQTT 5 user properties; of a name that comes twice, the last value.
        pa.field("properties", pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)), nullable=False),
        pa.field("content_type", pa.string()),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),  # in the partition
        pa.field("stored_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("position", pa.int64(), nullable=False),  # in the log
    ]
)


def record_batch(frames: bytes, partition: int, offset: int) -> pa.RecordBatch:
    """Sealed frames, consecutive records of a partition whose first is at `offset`, in columns of `SCHEMA`.

    Raises `ValueError` when the frames' lengths do not add up.
    """
    rows, positions, times, flags, *buffers = record.columns(frames)
    topics = _strings(pa.string(), rows, buffers[0], buffers[1])
    stored_ms = pa.Array.from_buffers(pa.timestamp("ms", tz="UTC"), rows, [None, pa.py_buffer(times)])
    qos = pc.bit_wise_and(pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(flags)]), pa.scalar(3, pa.int8()))
    properties, content_types = _properties(rows, buffers[4], buffers[5])
    columns = [
        topics,
        pc.split_pattern(topics, "/").cast(SCHEMA.field("levels").type),
        _strings(pa.binary(), rows, buffers[6], buffers[7]),
        _strings(pa.string(), rows, buffers[2], buffers[3]),
        qos,
        properties,
        content_types,
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        pa.array(range(offset, offset + rows), pa.int64()),
        stored_ms.cast(pa.timestamp("us", tz="UTC")),
        pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(positions)]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _strings(kind: pa.DataType, rows: int, offsets: bytes, data: bytes) -> pa.Array:
    """A string or binary array over buffers as `record.columns` gives them."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _properties(rows: int, offsets: bytes, data: bytes) -> tuple[pa.Array, pa.Array]:
    """User properties and content type of each record. Blocks are decoded only where there are any."""
    kind = SCHEMA.field("properties").type
    if not data:  # nobody spoke MQTT 5 with properties: the usual batch
        return pa.array([[]] * rows, kind), pa.nulls(rows, pa.string())
    users: list[dict[str, str]] = []
    content_types: list[str | None] = []
    ends = memoryview(offsets).cast("i")
    for row in range(rows):
        block = decode(data[ends[row] : ends[row + 1]])
        users.append(dict(block.user))
        content_types.append(block.content_type)
    return pa.array([list(user.items()) for user in users], kind), pa.array(content_types, pa.string())
