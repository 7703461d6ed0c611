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
from record.layout import PART_PAYLOAD, PART_PROPERTIES, PART_PUBLISHER, PART_TOPIC

PAYLOAD: Final = PART_PAYLOAD  # one of the parts that `parts_without` returns
_TEXT: Final = pa.field("element", pa.string(), nullable=False)
_TIME: Final = pa.timestamp("us", tz="UTC")

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
        pa.field(
            "published_at", _TIME, nullable=False
        ),  # the publisher's own (user property `born-ms`), or `stored_at`
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
    def times(self) -> pa.Array:
        """`stored`, in microseconds as Spark has them."""
        return self.stored.cast(_TIME)

    @cached_property
    def properties(self) -> "_Properties | None":
        """None if no message has properties, the usual case."""
        offsets, data = self.columns[8], self.columns[9]
        return _Properties(self.rows, record.property_columns(offsets, data)) if data else None

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
    """The properties of a page, as buffers of `record.property_columns`."""

    rows: int
    buffers: tuple[bytes, ...]

    def optional_texts(self, at: int) -> pa.Array:
        """The column whose bitmap is at index `at`, before its offsets and data."""
        return pa.Array.from_buffers(pa.string(), self.rows, [pa.py_buffer(each) for each in self.buffers[at : at + 3]])

    def tags(self) -> pa.Array:
        ends, *texts = self.buffers[3:6]
        return _lists(SCHEMA.field("tags").type, self.rows, ends, _texts(texts))

    def users(self) -> pa.Array:
        ends, *texts = self.buffers[6:11]
        kind = SCHEMA.field("properties").type
        pairs = pa.StructArray.from_arrays(
            [_texts(texts[:2]), _texts(texts[2:])], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(kind, self.rows, [None, pa.py_buffer(ends)], children=[pairs])

    def born(self) -> pa.Array:
        """The publisher's own time."""
        buffers = [pa.py_buffer(each) for each in self.buffers[14:16]]
        return pa.Array.from_buffers(pa.timestamp("ms", tz="UTC"), self.rows, buffers)


def _texts(buffers: Sequence[bytes]) -> pa.Array:
    """Texts without null: their offsets and data."""
    ends, data = buffers
    return pa.Array.from_buffers(pa.string(), len(ends) // 4 - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _lists(kind: pa.DataType, rows: int, ends: bytes, elements: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(ends)], children=[elements])


def _as(kind: pa.DataType, column: pa.Array) -> pa.Array:
    """Cast a column to `kind`, which may declare list elements and map values as nullable."""
    return column if column.type.equals(kind) else column.cast(kind)


def _levels(page: _Page) -> pa.Array:
    ends, *texts = record.level_columns(page.columns[4], page.columns[5])
    return _lists(SCHEMA.field("levels").type, page.rows, ends, _texts(texts))


def _keys(page: _Page) -> pa.Array:
    return pa.nulls(page.rows, pa.string()) if page.properties is None else page.properties.optional_texts(0)


def _tags(page: _Page) -> pa.Array:
    return _empty("tags", page.rows) if page.properties is None else page.properties.tags()


def _user_properties(page: _Page) -> pa.Array:
    return _empty("properties", page.rows) if page.properties is None else page.properties.users()


def _content_types(page: _Page) -> pa.Array:
    return pa.nulls(page.rows, pa.string()) if page.properties is None else page.properties.optional_texts(11)


def _published(page: _Page) -> pa.Array:
    if page.properties is None:
        return page.times
    return pc.coalesce(page.properties.born(), page.stored).cast(_TIME)


def _qos(page: _Page) -> pa.Array:
    return pc.bit_wise_and(page.fixed(pa.int8(), 3), pa.scalar(3, pa.int8()))


def _empty(name: str, rows: int) -> pa.Array:
    """Empty lists or maps."""
    while len(_EMPTY[name]) < rows:
        _EMPTY[name] = _no_elements(SCHEMA.field(name).type, 2 * rows)
    return _EMPTY[name].slice(0, rows)


def _no_elements(kind: pa.DataType, rows: int) -> pa.Array:
    ends, none = bytes(4 * (rows + 1)), _texts((bytes(4), b""))
    if isinstance(kind, pa.MapType):
        none = pa.StructArray.from_arrays([none, none], fields=[kind.key_field, kind.item_field])
    return _lists(kind, rows, ends, none)


# Arrays of empty lists and maps, of which each page uses a part.
_EMPTY: Final[dict[str, pa.Array]] = {name: _no_elements(SCHEMA.field(name).type, 1) for name in ("tags", "properties")}

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
    "stored_at": lambda page: page.times,
    "position": lambda page: page.fixed(pa.int64(), 1),
}
