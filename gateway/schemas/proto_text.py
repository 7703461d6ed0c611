"""The text of a .proto file as a descriptor: proto-schema-parser makes the syntax tree, protobuf resolves the names."""

from typing import Any, Final

from antlr4.error.ErrorListener import ErrorListener
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from proto_schema_parser import ast
from proto_schema_parser.parser import Parser

from gateway.schemas.errors import InvalidSchema, shortened

_MAX_LEVELS: Final = 32  # of messages in messages
_SCALARS: Final = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
_LABELS: Final = {
    None: FieldDescriptorProto.LABEL_OPTIONAL,
    ast.FieldCardinality.OPTIONAL: FieldDescriptorProto.LABEL_OPTIONAL,
    ast.FieldCardinality.REQUIRED: FieldDescriptorProto.LABEL_REQUIRED,
    ast.FieldCardinality.REPEATED: FieldDescriptorProto.LABEL_REPEATED,
}
_END: Final = 1 << 29  # of the numbers of fields


def descriptor_of(text: str, name: str) -> FileDescriptorProto:
    """Read a .proto file of proto2 or proto3. Options other than `packed` and `allow_alias` are left out.

    Raises `InvalidSchema`.
    """
    try:
        parsed = Parser(setup_lexer=_stop_at_errors, setup_parser=_stop_at_errors).parse(text)
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidSchema(shortened(f"it is no .proto file: {error}")) from error
    except RecursionError as error:
        raise InvalidSchema("it is too deep") from error
    if parsed.edition is not None or parsed.syntax not in (None, "proto2", "proto3"):
        raise InvalidSchema('syntax: "proto2" and "proto3" are known here')
    file = FileDescriptorProto(name=name, syntax=parsed.syntax or "proto2")
    builder = _Builder(is_proto3=parsed.syntax == "proto3")
    try:
        for element in parsed.file_elements:
            if isinstance(element, ast.Package):
                file.package = element.name
            elif isinstance(element, ast.Import):
                file.dependency.append(element.name)
            elif isinstance(element, ast.Message):
                builder.add_message(file.message_type.add(), element, 0)
            elif isinstance(element, ast.Enum):
                builder.add_enum(file.enum_type.add(), element)
            elif isinstance(element, ast.Extension | ast.Group):
                raise InvalidSchema("extensions and groups are not supported here")
    except (ValueError, TypeError) as error:  # a number that is too large for its place
        raise InvalidSchema(shortened(f"it is no .proto file: {error}")) from error
    return file


class _FirstError(ErrorListener):  # type: ignore[misc]  # ANTLR has no types
    """Ends the parser where it would guess how to go on."""

    def syntaxError(self, _recognizer: object, _symbol: object, line: int, column: int, msg: str, _e: object) -> None:  # noqa: N802
        raise ValueError(f"line {line}, column {column + 1}: {msg}")


def _stop_at_errors(recognizer: Any) -> None:
    recognizer.removeErrorListeners()
    recognizer.addErrorListener(_FirstError())


class _Builder:
    """Fills descriptors from a syntax tree. Its methods raise `InvalidSchema`, `ValueError` and `TypeError`."""

    def __init__(self, is_proto3: bool) -> None:
        self._is_proto3 = is_proto3

    def add_message(self, message: DescriptorProto, tree: ast.Message, level: int) -> None:
        if level > _MAX_LEVELS:
            raise InvalidSchema(f"messages are in at most {_MAX_LEVELS} others")
        message.name = tree.name
        optional: list[FieldDescriptorProto] = []
        for element in tree.elements:
            if isinstance(element, ast.Field):
                field = self._add_field(message, element)
                if self._is_proto3 and element.cardinality is ast.FieldCardinality.OPTIONAL:
                    optional.append(field)
            elif isinstance(element, ast.MapField):
                _add_map(message, element)
            elif isinstance(element, ast.OneOf):
                message.oneof_decl.add(name=element.name)
                index = len(message.oneof_decl) - 1
                for each in element.elements:
                    if isinstance(each, ast.Field):
                        self._add_field(message, each).oneof_index = index
                    elif isinstance(each, ast.Group):
                        raise InvalidSchema("groups are not supported here")
            elif isinstance(element, ast.Message):
                self.add_message(message.nested_type.add(), element, level + 1)
            elif isinstance(element, ast.Enum):
                self.add_enum(message.enum_type.add(), element)
            elif isinstance(element, ast.Reserved):
                _add_reserved(message, element)
            elif isinstance(element, ast.Group | ast.Extension | ast.ExtensionRange):
                raise InvalidSchema("extensions and groups are not supported here")
        for field in optional:  # behind the others, each in a oneof of its own, as protoc has them
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _add_field(self, message: DescriptorProto, tree: ast.Field) -> FieldDescriptorProto:
        field = message.field.add(name=tree.name, number=tree.number, label=_LABELS[tree.cardinality])
        _set_type(field, tree.type)
        for option in tree.options:
            if option.name == "packed":
                field.options.packed = str(option.value).lower() == "true"
        return field

    @staticmethod
    def add_enum(enum: EnumDescriptorProto, tree: ast.Enum) -> None:
        enum.name = tree.name
        for element in tree.elements:
            if isinstance(element, ast.EnumValue):
                enum.value.add(name=element.name, number=element.number)
            elif isinstance(element, ast.Option) and element.name == "allow_alias":
                enum.options.allow_alias = str(element.value).lower() == "true"


def _set_type(field: FieldDescriptorProto, name: str) -> None:
    scalar = _SCALARS.get(name)
    if scalar is None:
        field.type_name = name  # a message or an enum: which of them, protobuf finds out
    else:
        field.type = scalar


def _add_map(message: DescriptorProto, tree: ast.MapField) -> None:
    """A map is a repeated field of entries, which are messages."""
    name = "".join(part.capitalize() for part in tree.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, (field, kind) in enumerate((("key", tree.key_type), ("value", tree.value_type)), 1):
        label = FieldDescriptorProto.LABEL_OPTIONAL
        _set_type(entry.field.add(name=field, number=number, label=label), kind)
    label = FieldDescriptorProto.LABEL_REPEATED
    message.field.add(name=tree.name, number=tree.number, label=label, type_name=name)


def _add_reserved(message: DescriptorProto, tree: ast.Reserved) -> None:
    message.reserved_name.extend(each.strip("\"'") for each in tree.names)
    for each in tree.ranges:
        first, _, last = each.partition(" to ")
        end = _END if last.strip() == "max" else int(last or first) + 1
        message.reserved_range.add(start=int(first), end=end)
