"""Whether a reader with one JSON Schema accepts everything that another accepts.

The question has no general answer, so this one is on the safe side: what it cannot decide, it reports. It follows each
keyword of the reader and asks whether the writer's keywords imply it. As in Confluent's registry, objects without
`additionalProperties: false` may have had any other properties.
"""

from collections.abc import Callable
from typing import Any, Final

import orjson

from gateway.schemas.json_schema import JsonSchema
from gateway.schemas.json_work import resolve

_MAX_PROBLEMS: Final = 20
_MAX_COMPARISONS: Final = 20_000
_TYPES: Final = frozenset(("null", "boolean", "object", "array", "number", "string"))
_ANNOTATIONS: Final = frozenset(
    (
        *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
        *("deprecated", "readOnly", "writeOnly"),
    )
)
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_MAX_SHOWN: Final = 3


def unreadable(reader: JsonSchema, writer: JsonSchema) -> list[str]:
    """Why a reader may refuse something of a writer; empty if it accepts all."""
    if reader.canonical == writer.canonical:
        return []
    if _draft(reader.document) != _draft(writer.document):
        return ["#/$schema: schemas of two drafts cannot be compared"]
    comparison = _Comparison(reader.document, writer.document)
    try:
        return comparison.problems(reader.document, writer.document, "#/")[:_MAX_PROBLEMS]
    except RecursionError:
        return ["#/: the schemas are too deep to compare"]


class _Comparison:
    """Compares the subschemas of two documents.

    A pair that comes up again within its own comparison holds if all the rest holds. What is taken for the writer's
    schema on the way may accept more than that, and never less.
    """

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._is_alone = "draft-0" in _draft(reader)  # in these drafts, nothing beside $ref counts
        self._pairs: list[tuple[int, int]] = []  # that hold, or are under way
        self._made: list[Any] = []  # keeps the identities of the schemas made here
        self._comparisons = 0

    def problems(self, reader: Any, writer: Any, path: str) -> list[str]:
        self._comparisons += 1
        if self._comparisons > _MAX_COMPARISONS:
            return [f"{path}: the schemas are too large to compare"]
        reader, writer = self._without_references(self._reader, reader), self._without_references(self._writer, writer)
        if reader is True or writer is False or not _constraints(reader):
            return []
        if reader is False:
            return [f"{path}: the reader accepts nothing here"]
        pair = (id(reader), id(writer))
        if pair in self._pairs:
            return []
        known = len(self._pairs)
        self._pairs.append(pair)
        found = self._compared(reader, {} if writer is True else writer, path)
        if found:
            del self._pairs[known:]  # also what held only if this did
        return found

    def _without_references(self, document: Any, schema: Any) -> Any:
        """A schema, or what it refers to if it does nothing else. References do not go round (`JsonSchema`)."""
        while isinstance(schema, dict) and "$ref" in schema and (self._is_alone or len(_constraints(schema)) == 1):
            schema = resolve(document, schema["$ref"])
        return schema

    def _compared(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        if reader == writer and not _refers(reader):
            return []
        for keyword in ("anyOf", "oneOf"):  # what the writer accepts is accepted by one of its branches
            if keyword in writer:
                rest = {name: value for name, value in writer.items() if name != keyword}
                branches = [self._joined(rest, branch) for branch in writer[keyword]]
                return [each for branch in branches for each in self.problems(reader, branch, path)]
        parts: list[dict[str, Any]] = [writer]
        if "allOf" in writer:  # each branch by itself says something about all that the writer accepts
            own = {name: value for name, value in writer.items() if name != "allOf"}
            joined: list[Any] = [self._joined(own, branch) for branch in writer["allOf"]]
            if False in joined:
                return []
            parts = joined
        found: list[str] = []
        for keyword in reader:
            if keyword == "allOf":
                found += [each for branch in reader["allOf"] for each in self.problems(branch, writer, path)]
            elif keyword == "$ref":
                found += self.problems(resolve(self._reader, reader["$ref"]), writer, path)
            elif keyword not in _ANNOTATIONS:
                alternatives: list[list[str]] = [self._implied(keyword, reader, each, path) for each in parts]
                fewest = min(alternatives, key=len)
                found += fewest
        return found

    def _joined(self, schema: dict[str, Any], branch: Any) -> Any:
        """The keywords of a schema and of a branch of it. Where both have one, the branch's counts."""
        branch = self._without_references(self._writer, branch)
        if branch is False:
            return False
        if branch is True:
            return schema
        hidden = {each for group in _TOGETHER if not branch.keys().isdisjoint(group) for each in group}
        made = {**{name: value for name, value in schema.items() if name not in hidden}, **branch}
        self._made.append(made)
        return made

    def _implied(self, keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        """Why the writer does not imply a keyword of the reader."""
        check = _CHECKS.get(keyword)
        if check is not None:
            return check(self, keyword, reader, writer, path)
        equal = keyword in writer and writer[keyword] == reader[keyword]
        if equal and keyword not in _DEPENDENT and not _refers(reader[keyword]):
            return []
        return self._unknown(keyword, reader, writer, path)

    def _unknown(self, keyword: str, _reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        if keyword in writer:
            return [f"{path}{keyword}: it cannot be compared beside other changes"]
        return [f"{path}{keyword}: the writer does not have it"]

    def _type(self, _keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        expected = _types(reader)
        more = sorted(
            each for each in _types(writer) if each not in expected and not (each == "integer" and "number" in expected)
        )
        return [f"{path}type: the reader does not accept {', '.join(more)}"] if more else []

    def _values(self, keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        """enum and const."""
        written = _enumerated(writer)
        if written is None:
            return [f"{path}{keyword}: the writer has other values"]
        allowed = {_json(each) for each in _enumerated(reader) or ()}
        more = [each for each in written if _json(each) not in allowed]
        return [f"{path}{keyword}: the reader does not accept {each!r:.40}" for each in more[:_MAX_SHOWN]]

    def _bound(self, keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        limit, written = reader[keyword], writer.get(keyword)
        if keyword.startswith("min") and not limit and keyword != "minimum":
            return []  # nothing is shorter than that
        if written is not None and (written >= limit if keyword in _LOWER else written <= limit):
            return []
        known = "no limit" if written is None else str(written)
        return [f"{path}{keyword}: the reader has {limit}, and the writer {known}"]

    def _required(self, _keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        missing = [each for each in reader["required"] if each not in writer.get("required", ())]
        return [f"{path}required: the writer may leave out {each!r:.60}" for each in missing]

    def _properties(self, _keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        found = []
        written = writer.get("properties", {})
        for name, schema in reader["properties"].items():
            where = f"{path}properties/{name}/"
            if name in written:
                found += self.problems(schema, written[name], where)
            elif writer.get("patternProperties"):
                found.append(f"{where}: patternProperties of the writer may say otherwise")
            elif self.problems(schema, writer.get("additionalProperties", True), where):
                found.append(f"{where}: the writer may have this property with other values (additionalProperties)")
        return found

    def _additional(self, keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        schema = reader[keyword]
        if schema is True:
            return []
        where = f"{path}{keyword}/"
        found = []
        for name, written in writer.get("properties", {}).items():
            if name not in reader.get("properties", {}) and self.problems(schema, written, where):
                found.append(f"{where}: the reader does not accept the property {name!r:.60}")
        if reader.get("patternProperties") != writer.get("patternProperties"):
            found.append(f"{where}: patternProperties differ, and this cannot be compared")
        elif self.problems(schema, writer.get("additionalProperties", True), where):
            found.append(f"{where}: the writer may have other properties")
        return found

    def _items(self, keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        mixed = isinstance(reader[keyword], list) or isinstance(writer.get(keyword), list)
        first = reader.get("prefixItems")
        if mixed or first != writer.get("prefixItems") or _refers(first):
            return self._unknown(keyword, reader, writer, path)
        return self.problems(reader[keyword], writer.get(keyword, True), f"{path}items/")

    def _any_of(self, keyword: str, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        branches = reader[keyword]
        if keyword == "oneOf" and not _are_apart(branches):
            return self._unknown(keyword, reader, writer, path)
        if any(not self.problems(branch, writer, path) for branch in branches):
            return []
        return [f"{path}{keyword}: no branch of the reader accepts all that the writer accepts"]


_Check = Callable[[_Comparison, str, dict[str, Any], dict[str, Any], str], list[str]]
_CHECKS: Final[dict[str, _Check]] = {
    "type": _Comparison._type,
    "enum": _Comparison._values,
    "const": _Comparison._values,
    **dict.fromkeys((*_LOWER, *_UPPER), _Comparison._bound),
    "required": _Comparison._required,
    "properties": _Comparison._properties,
    "additionalProperties": _Comparison._additional,
    "items": _Comparison._items,
    "anyOf": _Comparison._any_of,
    "oneOf": _Comparison._any_of,
}
# Keywords that mean something else beside other keywords: equal ones do not say the same.
_DEPENDENT: Final = frozenset(("unevaluatedProperties", "unevaluatedItems", "additionalItems", "contains"))
# Keywords that belong together: a branch that has one of them hides those of the schema around it.
_TOGETHER: Final = (
    frozenset(("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")),
    frozenset(("items", "prefixItems", "additionalItems", "unevaluatedItems")),
    frozenset(("contains", "minContains", "maxContains")),
    frozenset(("if", "then", "else")),
)


def _draft(document: Any) -> str:
    return str(document.get("$schema", "draft/2020-12")).rstrip("#") if isinstance(document, dict) else "draft/2020-12"


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _refers(value: object) -> bool:
    """Whether there is a reference in a schema: equal references may name different things."""
    return b'"$ref"' in _json(value)


def _constraints(schema: Any) -> list[str]:
    return [each for each in schema if each not in _ANNOTATIONS] if isinstance(schema, dict) else [""]


def _types(schema: dict[str, Any]) -> frozenset[str]:
    if "type" in schema:
        types = schema["type"]
        return frozenset((types,) if isinstance(types, str) else types)
    values = _enumerated(schema)
    return _TYPES if values is None else frozenset(_type_of(each) for each in values)


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _enumerated(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _are_apart(branches: list[Any]) -> bool:
    """Whether no value is accepted by two branches, because their types say so."""
    known: set[str] = set()
    for branch in branches:
        if not isinstance(branch, dict) or ("type" not in branch and _enumerated(branch) is None):
            return False
        types = {"number" if each == "integer" else each for each in _types(branch)}
        if known & types:
            return False
        known |= types
    return True
