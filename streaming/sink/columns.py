"""The columns that a sink accepts, and the conversion of rows to messages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from cloud_sdk import InvalidArgument, OutgoingMessage
from cloud_sdk.properties import KEY, TAG
from streaming.option_values import OptionError
from streaming.sink.options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_NUMBER: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXT: Final = (StringType,)
_BYTES: Final = (BinaryType, StringType)
_TEXTS: Final = (StringType, ArrayType)
_ROWS: Final = 256  # converted to Python at a time; a batch of Spark has ten thousand rows of any size

COLUMNS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": _TEXT,
    "payload": _BYTES,
    "qos": _NUMBER,
    "retain": (BooleanType,),
    "key": _TEXTS,
    "tags": _TEXTS,
    "ordering_key": _TEXT,
    "properties": (MapType,),
    "content_type": _TEXT,
    "response_topic": _TEXT,
    "correlation_data": _BYTES,
    "message_expiry": _NUMBER,
}


def sink_options(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    """Parse and check the options of a sink for rows of `schema`. Raises `OptionError`."""
    if overwrite:
        raise OptionError("the log can only be appended to: use the mode append, or the output mode append or update")
    options = SinkOptions.parse(given)
    check_columns(schema, options)
    return options


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise `OptionError` if rows of the schema cannot be messages."""
    for field in schema:
        known = COLUMNS.get(field.name)
        if known is None:
            raise OptionError(
                f"the sink has no column {field.name!r}: put it into the payload, for instance with "
                f"to_json(struct(...)), or drop it. The columns are {', '.join(COLUMNS)}"
            )
        if not isinstance(field.dataType, known):
            names = " or ".join(kind.typeName() for kind in known)
            raise OptionError(f"column {field.name} must be {names}, not {field.dataType.simpleString()}")
        if not all(isinstance(each, StringType) for each in _inside(field.dataType)):
            raise OptionError(f"column {field.name} must hold strings, not {field.dataType.simpleString()}")
    if "payload" not in schema.names:
        raise OptionError(
            "the column payload is missing: it must be binary or a string, for instance from to_json(struct(...))"
        )
    if "topic" not in schema.names and options.topic is None:
        raise OptionError("neither a column topic nor the option topic is given")


def messages_of(batch: "RecordBatch", options: SinkOptions) -> Iterator[OutgoingMessage]:
    """Convert the rows of an Arrow batch to messages. A null counts as a missing column, and a null payload is empty.
    Raises `InvalidArgument` for a row without a topic."""
    for first in range(0, batch.num_rows, _ROWS):
        yield from _messages(batch.slice(first, _ROWS), options)


def _messages(batch: "RecordBatch", options: SinkOptions) -> Iterator[OutgoingMessage]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing: Sequence[None] = (None,) * batch.num_rows
    rows = zip(*(columns.get(name, nothing) for name in COLUMNS), strict=True)
    for (
        topic,
        payload,
        qos,
        retain,
        key,
        tags,
        order,
        properties,
        content,
        response,
        correlation,
        expiry,
    ) in rows:
        to = topic if topic is not None else options.topic
        if to is None:
            raise InvalidArgument("a row has no topic, and there is no option topic")
        yield OutgoingMessage(
            to,
            _bytes(payload) or b"",
            qos=options.qos if qos is None else qos,
            retain=options.retain if retain is None else retain,
            properties=_pairs(properties, key, _texts(tags)),
            content_type=content,
            response_topic=response,
            correlation_data=_bytes(correlation),
            message_expiry=expiry,
            keys=_texts(key),
            ordering_key=order,
        )


def _inside(kind: DataType) -> list[DataType]:
    """Return the types of the elements of an array, or of the keys and values of a map."""
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    return [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []


def _pairs(
    properties: list[tuple[str, str | None]] | None, key: str | list[str | None] | None, tags: list[str]
) -> list[tuple[str, str]]:
    """Return the user properties. The columns `key` and `tags` replace keys and tags among the properties."""
    replaced = {KEY} if key is not None else set()
    if tags:
        replaced.add(TAG)
    pairs = [(name, value) for name, value in properties or () if value is not None and name not in replaced]
    return pairs + [(TAG, tag) for tag in tags]


def _texts(value: str | list[str | None] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [each for each in value if each is not None]


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
