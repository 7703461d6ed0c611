"""Whether a reader with one .proto file can read what was written with another: by the numbers of fields and by what
their types have in common on the wire (https://protobuf.dev/programming-guides/proto3/#updating)."""

from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from gateway.schemas.protobuf import ProtobufSchema

# Types of one group are read as each other.
_WIRE_GROUPS: Final = {
    **dict.fromkeys(
        (
            *(FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32),
            *(FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_BOOL),
        ),
        "a varint",
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64), "a zigzag varint"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), "4 fixed bytes"),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), "8 fixed bytes"),
    **dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES), "a text or bytes"),
    FieldDescriptor.TYPE_FLOAT: "a float",
    FieldDescriptor.TYPE_DOUBLE: "a double",
    FieldDescriptor.TYPE_ENUM: "an enum",
    FieldDescriptor.TYPE_MESSAGE: "a message",
}
_MAX_PROBLEMS: Final = 20


def unreadable(reader: ProtobufSchema, writer: ProtobufSchema) -> list[str]:
    """Why a reader could not read some message of a writer; empty if it can read all."""
    readers = {each.name: each for each in reader.messages}
    found: list[str] = []
    seen: set[tuple[str, str]] = set()
    for message in writer.messages:
        other = readers.get(message.name)
        if other is None:
            found.append(f"{message.name}: the reader does not have this message")
        else:
            found += _problems(other, message, seen)
    if reader.messages[0].name != writer.messages[0].name:
        found.append(f"the first message of the reader is {reader.messages[0].name}, not {writer.messages[0].name}")
    return found[:_MAX_PROBLEMS]


def _problems(reader: Descriptor, writer: Descriptor, seen: set[tuple[str, str]]) -> list[str]:
    if (reader.full_name, writer.full_name) in seen or len(seen) > 10_000:
        return []
    seen.add((reader.full_name, writer.full_name))
    found = []
    for number, field in reader.fields_by_number.items():
        other = writer.fields_by_number.get(number)
        name = f"{reader.name}.{field.name} ({number})"
        if other is None:
            if field.is_required:
                found.append(f"{name}: the reader requires it, and the writer does not have it")
            continue
        if field.is_required and not other.is_required:
            found.append(f"{name}: the reader requires it, and the writer may leave it out")
        if field.is_repeated != other.is_repeated:
            found.append(f"{name}: it is repeated in one of them only")
        expected, written = _WIRE_GROUPS.get(field.type), _WIRE_GROUPS.get(other.type)
        if expected != written:
            found.append(f"{name}: the reader expects {expected}, and the writer has {written}")
        elif field.message_type is not None and other.message_type is not None:
            found += _problems(field.message_type, other.message_type, seen)
    return found + _joined_oneofs(reader, writer)


def _joined_oneofs(reader: Descriptor, writer: Descriptor) -> list[str]:
    """Fields that the writer may set together, and of which the reader keeps the last one."""
    found = []
    for oneof in reader.oneofs:
        numbers = {each.number for each in oneof.fields}
        apart = {
            (other.containing_oneof.name if other.containing_oneof is not None else number)
            for number, other in writer.fields_by_number.items()
            if number in numbers
        }
        if len(apart) > 1:
            found.append(f"{reader.name}.{oneof.name}: fields that the writer may set together are in one oneof")
    return found
