"""Whether a reader with one Avro schema can read what was written with another: the rules of schema resolution
(https://avro.apache.org/docs/1.11.1/specification/#schema-resolution)."""

from typing import Any, Final

from gateway.schemas.avro import AvroSchema

_PROMOTED: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
_MAX_PROBLEMS: Final = 20


def unreadable(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Why a reader could not read some value of a writer; empty if it can read all."""
    return _Resolution(reader.named, writer.named).problems(reader.root, writer.root, "/")[:_MAX_PROBLEMS]


class _Resolution:
    def __init__(self, reader_types: dict[str, Any], writer_types: dict[str, Any]) -> None:
        self._reader_types = reader_types
        self._writer_types = writer_types

    def problems(self, reader: Any, writer: Any, path: str) -> list[str]:
        """The schemas contain no type within itself (`AvroSchema`), so this ends."""
        reader, writer = _resolved(reader, self._reader_types), _resolved(writer, self._writer_types)
        if isinstance(writer, list):
            return [each for branch in writer for each in self.problems(reader, branch, path)]
        if isinstance(reader, list):
            if any(not self.problems(branch, writer, path) for branch in reader):
                return []
            return [f"{path}: the union of the reader has no type for {_kind(writer)}"]
        reader_kind, writer_kind = _kind(reader), _kind(writer)
        if reader_kind != writer_kind:
            if reader_kind in _PROMOTED.get(writer_kind, ()):
                return []
            return [f"{path}: the reader expects {reader_kind}, and the writer has {writer_kind}"]
        if reader_kind == "array":
            return self.problems(reader["items"], writer["items"], f"{path}items/")
        if reader_kind == "map":
            return self.problems(reader["values"], writer["values"], f"{path}values/")
        if reader_kind in ("record", "error", "enum", "fixed") and not _same_name(reader, writer):
            return [f"{path}: the reader expects {reader['name']}, and the writer has {writer['name']}"]
        if reader_kind == "fixed" and reader["size"] != writer["size"]:
            return [f"{path}: the reader expects {reader['size']} bytes, and the writer has {writer['size']}"]
        if reader_kind == "enum" and "default" not in reader:
            missing = [each for each in writer["symbols"] if each not in reader["symbols"]]
            return [f"{path}: the reader does not know the symbol {each}, and has no default" for each in missing]
        return self._fields(reader, writer, path) if reader_kind in ("record", "error") else []

    def _fields(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        found = []
        written = {each["name"]: each for each in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            other = next((written[name] for name in names if name in written), None)
            if other is not None:
                found += self.problems(field["type"], other["type"], f"{path}{field['name']}/")
            elif "default" not in field:
                found.append(f"{path}{field['name']}: the writer does not have it, and the reader has no default")
        return found


def _resolved(schema: Any, types: dict[str, Any]) -> Any:
    while True:
        if isinstance(schema, str) and schema in types:
            schema = types[schema]
        elif isinstance(schema, dict) and not isinstance(schema["type"], str):
            schema = schema["type"]
        else:
            return schema


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _same_name(reader: dict[str, Any], writer: dict[str, Any]) -> bool:
    """Whether the names are equal without their namespaces, or the writer's is an alias of the reader's."""
    names = {each.rpartition(".")[2] for each in (reader["name"], *reader.get("aliases", ()))}
    return writer["name"].rpartition(".")[2] in names
