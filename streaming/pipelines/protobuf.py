"""Parsing Protobuf payloads into columns, in Spark's Python workers: no package for the JVM is needed."""

from collections.abc import Mapping
from datetime import UTC
from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - Spark's own custom

from streaming.pipelines.decoded import Decoder, with_decoded

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_MOST_INDEXES: Final = 64  # of a message within messages, in the header of a registry
_SIMPLE: Final[Mapping[int, T.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: T.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: T.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: T.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: T.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: T.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: T.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: T.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: T.StringType(),
    FieldDescriptor.CPPTYPE_STRING: T.StringType(),
}


def with_protobuf(
    records: DataFrame, descriptors: bytes, message: str, column: str = "body", *, schema_id: int | None = None
) -> DataFrame:
    """Add `column`, the payload as a struct of the fields of a message.

    descriptors: the content of a file of `protoc --include_imports --descriptor_set_out=FILE`. message: the full name,
    with its package. schema_id: payloads begin with the header of a schema registry: a zero byte, this id in four
    bytes, and the indexes of the message. A payload with another header, or that is no such message, becomes null.

    Enums are their names, and a `google.protobuf.Timestamp` is a timestamp. A field that was not set is null if
    Protobuf tells it apart from its default. Raises `ValueError` for an unknown message, and for one that contains
    itself.
    """
    kind = _struct_of(_descriptor(descriptors, message), ())
    return with_decoded(records, column, kind, lambda: _decoder(descriptors, message, schema_id is not None), schema_id)


@lru_cache(maxsize=64)
def _decoder(descriptors: bytes, name: str, has_indexes: bool) -> Decoder:
    kind = GetMessageClass(_descriptor(descriptors, name))

    def decode(payload: bytes) -> dict[str, Any] | None:
        try:
            return _values(kind.FromString(payload[_indexes(payload) if has_indexes else 0 :]))
        except (DecodeError, ValueError, OverflowError):
            return None

    return decode


def _descriptor(descriptors: bytes, name: str) -> Descriptor:
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except (DecodeError, TypeError) as error:
        raise ValueError(f"not the descriptors of protoc --include_imports --descriptor_set_out: {error}") from error
    except KeyError as error:
        raise ValueError(f"the descriptors have no message {name!r}") from error


def _indexes(payload: bytes) -> int:
    """Return how many bytes the indexes of the message take: a count and as many numbers, all of variable length."""
    count, at = _number(payload, 0)
    if count > _MOST_INDEXES:
        raise ValueError("too many indexes")
    for _ in range(count):
        _, at = _number(payload, at)
    return at


def _number(payload: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number of up to five bytes, and where it ends."""
    value = 0
    for length, byte in enumerate(payload[at : at + 5]):
        value |= (byte & 0x7F) << 7 * length
        if byte < 0x80:
            return value >> 1, at + length + 1
    raise ValueError("a number is cut short")


def _struct_of(kind: Descriptor, inside: tuple[str, ...]) -> T.StructType:
    if kind.full_name in inside:
        raise ValueError(f"the message {kind.full_name!r} contains itself")
    within = (*inside, kind.full_name)
    return T.StructType([T.StructField(field.name, _type_of(field, within)) for field in kind.fields])


def _type_of(field: FieldDescriptor, inside: tuple[str, ...]) -> T.DataType:
    if (entry := _map_entry(field)) is not None:
        key, value = (entry.fields_by_name[name] for name in ("key", "value"))
        return T.MapType(_type_of(key, inside), _type_of(value, inside))
    if field.message_type is None:
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        kind: T.DataType = T.BinaryType() if is_bytes else _SIMPLE[field.cpp_type]
    else:
        is_time = field.message_type.full_name == _TIMESTAMP
        kind = T.TimestampType() if is_time else _struct_of(field.message_type, inside)
    return T.ArrayType(kind) if field.is_repeated else kind


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a key and a value, if a field is a map."""
    kind = field.message_type
    return kind if kind is not None and kind.GetOptions().map_entry else None


def _values(message: Message) -> dict[str, Any]:
    fields: Any = message.DESCRIPTOR.fields
    return {field.name: _value(message, field) for field in fields}


def _value(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if (entry := _map_entry(field)) is not None:
        item = entry.fields_by_name["value"]
        return {key: _single(each, item) for key, each in value.items()}
    if field.is_repeated:
        return [_single(each, field) for each in value]
    return None if field.has_presence and not message.HasField(field.name) else _single(value, field)


def _single(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return value.ToDatetime(UTC) if field.message_type.full_name == _TIMESTAMP else _values(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return value
