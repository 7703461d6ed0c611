"""Records as Arrow batches. The columns of frames become Arrow buffers without a Python object per record.

This module needs pyarrow and numpy, which the rest of the SDK does not need. PySpark installs them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import record
from cloud_sdk.properties import KEY, TAG, decode
from record.layout import PART_PAYLOAD, PART_PROPERTIES, PART_PUBLISHER, PART_TOPIC

PAYLOAD: Final = PART_PAYLOAD  # one of the parts that `parts_without` returns
BORN: Final = "born-ms"  # the user property with the publisher's own time, ms since 1970-01-01 UTC, in decimal digits
_TEXT: Final = pa.field("element", pa.string(), nullable=False)
_TIME: Final = pa.timestamp("us", tz="UTC")
_LAST_BORN: Final = 253_402_300_799_999  # ms: the year 9999
_DIGITS: Final = 15

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("levels", pa.list_(_TEXT), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("key", pa.string()),  # the first one
        pa.field("tags", pa.list_(_TEXT), nullable=False),
        # MQTT 5 user properties. If a name repeats, its last value.
        pa.field("properties", pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)), nullable=False),
        pa.field("client_id", pa.string(), nullable=False),  # the publisher's
        pa.field("qos", pa.int8(), nullable=False),  # the publisher's
        pa.field("content_type", pa.string()),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),  # in the partition
        pa.field("published_at", _TIME, nullable=False),  # the publisher's time (`BORN`), else `stored_at`
        pa.field("stored_at", _TIME, nullable=False),  # when the record was appended to the log
        pa.field("position", pa.int64(), nullable=False),  # in the log
    ]
)

# The part of a record that a column is made from. Other columns are made from the header.
_PARTS: Final = {
    "topic": PART_TOPIC,
    "levels": PART_TOPIC,
    "payload": PART_PAYLOAD,
    "key": PART_PROPERTIES,
    "tags": PART_PROPERTIES,
    "properties": PART_PROPERTIES,
    "client_id": PART_PUBLISHER,
    "content_type": PART_PROPERTIES,
    "published_at": PART_PROPERTIES,
}


def schema_of(names: Sequence[str]) -> pa.Schema:
    """The columns of `SCHEMA` with these names, in this order. Raises `KeyError` for an unknown name."""
    return pa.schema([SCHEMA.field(name) for name in names])


def parts_without(names: Sequence[str]) -> int:
    """The sum of the parts of records (`record.layout.PART_*`) that none of these columns needs."""
    needed = 0
    for name in names:
        needed |= _PARTS.get(name, 0)
    return (PART_TOPIC | PART_PUBLISHER | PART_PROPERTIES | PART_PAYLOAD) & ~needed


def record_batch(
    frames: bytes, partition: int, offset: int, *, schema: pa.Schema = SCHEMA, offsets: Sequence[int] = ()
) -> pa.RecordBatch:
    """Convert sealed frames of a partition to the columns of `schema` (`schema_of`). The offsets of the records are
    `offsets`, or consecutive from `offset` on. Raises `ValueError` if the frames are cut short."""
    page = _Page(record.columns(frames), partition, np.array(offsets, np.int64) if offsets else offset)
    columns = [_as(field.type, _COLUMNS[field.name](page)) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass
class _Page:
    """One batch of records from `record.columns`. Arrays that several columns need are made once."""

    columns: tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]
    partition: int
    first: "int | np.ndarray[tuple[int], np.dtype[np.int64]]"  # the first offset, or each of them

    @property
    def rows(self) -> int:
        return self.columns[0]

    @cached_property
    def topics(self) -> pa.Array:
        return self.strings(pa.string(), 4)

    @cached_property
    def stored(self) -> pa.Array:
        return self.fixed(pa.timestamp("ms", tz="UTC"), 2)

    @cached_property
    def properties(self) -> "_Properties | None":
        return _Properties.read(self.rows, self.columns[8], self.columns[9])

    def strings(self, kind: pa.DataType, at: int) -> pa.Array:
        """A string or binary array over the two buffers at index `at`."""
        offsets, data = self.columns[at : at + 2]
        return pa.Array.from_buffers(kind, self.rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    def fixed(self, kind: pa.DataType, at: int) -> pa.Array:
        return pa.Array.from_buffers(kind, self.rows, [None, pa.py_buffer(self.columns[at])])

    def offsets(self) -> pa.Array:
        first = self.first
        return pa.array(np.arange(first, first + self.rows, dtype=np.int64) if isinstance(first, int) else first)


@dataclass(slots=True)
class _Properties:
    """The decoded property blocks of a page. `read` returns None if no message has properties, the usual case."""

    content_types: list[str | None]
    users: list[list[tuple[str, str]]]

    @classmethod
    def read(cls, rows: int, offsets: bytes, data: bytes) -> "_Properties | None":
        if not data:
            return None
        found = cls([], [])
        ends = memoryview(offsets).cast("i")
        for row in range(rows):
            block = decode(data[ends[row] : ends[row + 1]])
            found.users.append(block.user)
            found.content_types.append(block.content_type)
        return found


def _as(kind: pa.DataType, column: pa.Array) -> pa.Array:
    """Cast a column to `kind`, which may declare list elements and map values as nullable."""
    return column if column.type.equals(kind) else column.cast(kind)


def _levels(page: _Page) -> pa.Array:
    return pc.split_pattern(page.topics, "/").cast(SCHEMA.field("levels").type)


def _keys(page: _Page) -> pa.Array:
    if page.properties is None:
        return pa.nulls(page.rows, pa.string())
    return pa.array([next((value for name, value in user if name == KEY), None) for user in page.properties.users])


def _tags(page: _Page) -> pa.Array:
    kind = SCHEMA.field("tags").type
    if page.properties is None:
        return _empty(kind, page.rows)
    return pa.array([[value for name, value in user if name == TAG] for user in page.properties.users], kind)


def _user_properties(page: _Page) -> pa.Array:
    kind = SCHEMA.field("properties").type
    if page.properties is None:
        return _empty(kind, page.rows)
    return pa.array([list(dict(user).items()) for user in page.properties.users], kind)


def _content_types(page: _Page) -> pa.Array:
    if page.properties is None:
        return pa.nulls(page.rows, pa.string())
    return pa.array(page.properties.content_types, pa.string())


def _published(page: _Page) -> pa.Array:
    if page.properties is None:
        return page.stored.cast(_TIME)
    born = pa.array([_born_ms(user) for user in page.properties.users], pa.int64())
    return pc.coalesce(born.cast(pa.timestamp("ms", tz="UTC")), page.stored).cast(_TIME)


def _born_ms(user: list[tuple[str, str]]) -> int | None:
    for name, value in user:
        if name == BORN and len(value) <= _DIGITS and value.isascii() and value.isdecimal():
            return int(value) if int(value) <= _LAST_BORN else None
    return None


def _qos(page: _Page) -> pa.Array:
    return pc.bit_wise_and(page.fixed(pa.int8(), 3), pa.scalar(3, pa.int8()))


def _empty(kind: pa.DataType, rows: int) -> pa.Array:
    """Empty lists or maps."""
    kinds = pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], pa.string()))
    if isinstance(kind, pa.MapType):
        none = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), none, none).cast(kind)
    return kinds.cast(kind)


_COLUMNS: Final[dict[str, Callable[[_Page], pa.Array]]] = {
    "topic": lambda page: page.topics,
    "levels": _levels,
    "payload": lambda page: page.strings(pa.binary(), 10),
    "key": _keys,
    "tags": _tags,
    "properties": _user_properties,
    "client_id": lambda page: page.strings(pa.string(), 6),
    "qos": _qos,
    "content_type": _content_types,
    "partition": lambda page: pa.repeat(pa.scalar(page.partition, pa.int32()), page.rows),
    "offset": _Page.offsets,
    "published_at": _published,
    "stored_at": lambda page: page.stored.cast(_TIME),
    "position": lambda page: page.fixed(pa.int64(), 1),
}
