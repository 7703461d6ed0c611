"""Avro 1.11, read by fastavro.

Schemas whose payloads could cost more than their bytes are refused: records that contain themselves, which fastavro
reads by a recursion without a limit, and values of no bytes, of which a few bytes could announce billions.
"""

import io
from typing import Any, Final

import orjson
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException, UnknownType, to_parsing_canonical_form

from gateway.schemas.errors import InvalidPayload, InvalidSchema, shortened

MAX_PAYLOAD: Final = 262_144  # bytes of a payload that is checked
_MAX_TYPES: Final = 1_000  # of a schema, with each named type counted where it is used
_MAX_LEVELS: Final = 64
_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


class AvroSchema:
    """A compiled Avro schema."""

    __slots__ = ("_parsed", "canonical", "named", "root", "text")
    kind: Final = "AVRO"

    def __init__(self, text: str) -> None:
        """Raises `InvalidSchema`."""
        self.text = text
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidSchema(f"it is not JSON: {error}") from error
        # The encoding is that of the underlying type, so logical types are left out.
        document = _without_logical_types(document, 0)
        self.named: dict[str, Any] = {}  # types by their full names
        try:
            self._parsed: Any = parse_schema(document, named_schemas=self.named, expand=False)
        except (SchemaParseException, UnknownType, TypeError, KeyError, ValueError, AttributeError) as error:
            raise InvalidSchema(shortened(f"it is no Avro schema: {error}")) from error
        except RecursionError as error:
            raise InvalidSchema("it is too deep") from error
        self.root: Any = self._parsed
        _Sizes(self.named).check(self.root)
        try:  # Equal for schemas that read the same: Avro's parsing canonical form, with the defaults of fields.
            self.canonical = orjson.dumps(
                [to_parsing_canonical_form(self._parsed), _defaults(self.root)], option=orjson.OPT_SORT_KEYS
            )
        except TypeError as error:
            raise InvalidSchema(shortened(f"names, aliases or defaults are not those of Avro: {error}")) from error

    def check(self, payload: bytes) -> None:
        """Raises `InvalidPayload`."""
        if len(payload) > MAX_PAYLOAD:
            raise InvalidPayload(f"it has more than {MAX_PAYLOAD} bytes, and larger payloads are not checked")
        data = io.BytesIO(payload)
        try:
            schemaless_reader(data, self._parsed, None)
        except (EOFError, IndexError) as error:
            raise InvalidPayload("it ends within a value, or has a number of no branch or symbol") from error
        except (ValueError, TypeError, KeyError, OverflowError, ArithmeticError, MemoryError) as error:
            raise InvalidPayload(shortened(f"it is not Avro of this schema: {error}")) from error
        if data.tell() != len(payload):
            raise InvalidPayload(f"{len(payload) - data.tell()} bytes follow the value")

    def check_framed(self, payload: bytes) -> None:
        """Check what follows a schema id. Raises `InvalidPayload`."""
        self.check(payload)


class _Sizes:
    """Looks for types that contain themselves, and for values of no bytes."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._types = 0

    def check(self, schema: Any) -> None:
        """Raises `InvalidSchema`."""
        if not self._has_bytes(schema, ()):
            raise InvalidSchema("the values of this schema have no bytes")

    def _has_bytes(self, schema: Any, inside: tuple[str, ...]) -> bool:
        """Whether all values of a type have bytes. inside: the named types around it."""
        self._types += 1
        if self._types > _MAX_TYPES or len(inside) > _MAX_LEVELS:
            raise InvalidSchema(f"a schema has at most {_MAX_TYPES} types in {_MAX_LEVELS} levels")
        if isinstance(schema, list):
            if not schema or any(isinstance(each, list) for each in schema):
                raise InvalidSchema("a union has types, and no unions")
            for branch in schema:  # a branch of no bytes has those of its number
                self._has_bytes(branch, (*inside, ""))
            return True
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return schema != "null"
            return self._has_bytes(self._named[schema], inside)
        kind = schema["type"]
        if kind in ("array", "map"):
            if not self._has_bytes(schema["items" if kind == "array" else "values"], (*inside, "")) and kind == "array":
                raise InvalidSchema("the items of an array have bytes: they are not null, nor a record of nulls")
            return True
        if kind in ("record", "error"):
            name = schema["name"]
            if name in inside:
                raise InvalidSchema(f"{name} contains itself, which is not supported here")
            fields = [self._field_has_bytes(each, (*inside, name)) for each in schema["fields"]]
            return bool(fields)
        if kind == "fixed":
            if not isinstance(schema["size"], int) or schema["size"] < 0:
                raise InvalidSchema(f"the size of {shortened(str(schema['name']))} is a number of bytes")
            return schema["size"] > 0
        return kind == "enum" or self._has_bytes(kind, (*inside, ""))

    def _field_has_bytes(self, field: dict[str, Any], inside: tuple[str, ...]) -> bool:
        if not self._has_bytes(field["type"], inside):
            raise InvalidSchema(f"the field {field['name']} has no bytes; null stands in a union with another type")
        return True


def _without_logical_types(schema: Any, level: int) -> Any:
    if level > 2 * _MAX_LEVELS:
        raise InvalidSchema(f"a schema has at most {_MAX_LEVELS} levels")
    if isinstance(schema, list):
        return [_without_logical_types(each, level + 1) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_logical_types(value, level + 1) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
        if key not in ("logicalType", "doc")
    }


def _defaults(schema: Any) -> Any:
    """The defaults and aliases in a schema, which its canonical form leaves out."""
    if isinstance(schema, list):
        return [_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return None
    own = [schema.get("default"), sorted(schema.get("aliases", ())), "default" in schema]
    return [own, *(_defaults(schema[key]) for key in ("type", "items", "values", "fields") if key in schema)]
