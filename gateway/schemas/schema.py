"""A schema of any of the three kinds, and whether one may follow others in its subject."""

from collections.abc import Sequence
from typing import Final

from gateway.schemas import avro_compatibility, json_compatibility, protobuf_compatibility
from gateway.schemas.avro import AvroSchema
from gateway.schemas.errors import InvalidSchema
from gateway.schemas.json_schema import JsonSchema
from gateway.schemas.kinds import KINDS, Level, Schema
from gateway.schemas.protobuf import ProtobufSchema

MAX_TEXT: Final = 65_536  # bytes of a schema
_CLASSES: Final[dict[str, type[AvroSchema | JsonSchema | ProtobufSchema]]] = {
    "AVRO": AvroSchema,
    "JSON": JsonSchema,
    "PROTOBUF": ProtobufSchema,
}
_TRANSITIVE: Final = "_TRANSITIVE"


def parse_schema(kind: str, text: str) -> Schema:
    """Compile a schema. It may take a second. Raises `InvalidSchema`."""
    if len(text.encode()) > MAX_TEXT:
        raise InvalidSchema(f"a schema has at most {MAX_TEXT} bytes")
    found = _CLASSES.get(kind)
    if found is None:
        raise InvalidSchema(f"{kind[:40]!r} is no kind of schema: {', '.join(KINDS)}")
    return found(text)


def unreadable(reader: Schema, writer: Schema) -> list[str]:
    """Why a reader could not read something of a writer; empty if it can read all."""
    if isinstance(reader, AvroSchema) and isinstance(writer, AvroSchema):
        return avro_compatibility.unreadable(reader, writer)
    if isinstance(reader, JsonSchema) and isinstance(writer, JsonSchema):
        return json_compatibility.unreadable(reader, writer)
    if isinstance(reader, ProtobufSchema) and isinstance(writer, ProtobufSchema):
        return protobuf_compatibility.unreadable(reader, writer)
    return [f"/: the reader has {reader.kind}, and the writer {writer.kind}"]


def incompatible(level: Level, new: Schema, earlier: Sequence[tuple[int, Schema]]) -> list[str]:
    """Why a schema may not follow the versions of its subject; empty if it may.

    level: as in Confluent's registry. BACKWARD: the new schema reads what the last version wrote. FORWARD: the last
    version reads what the new schema writes. FULL: both. TRANSITIVE: all versions in place of the last one. earlier:
    versions by number, the newest last.
    """
    if level == "NONE":
        return []
    direction = level.removesuffix(_TRANSITIVE)
    found = []
    for version, other in earlier if level.endswith(_TRANSITIVE) else earlier[-1:]:
        if direction in ("BACKWARD", "FULL"):
            found += [f"to read version {version}: {each}" for each in unreadable(new, other)]
        if direction in ("FORWARD", "FULL"):
            found += [f"to be read by version {version}: {each}" for each in unreadable(other, new)]
    return found
