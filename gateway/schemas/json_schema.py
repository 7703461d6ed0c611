"""JSON Schema, drafts 6, 7, 2019-09 and 2020-12, evaluated by jsonschema-rs.

What could cost more than some looks at each value of a payload is refused in a schema: regular expressions with
backtracking or of much memory, references to elsewhere, and subschemas that are evaluated too often at one place.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import jsonschema_rs
import orjson

from gateway.schemas.errors import InvalidPayload, InvalidSchema, shortened

MAX_PAYLOAD: Final = 262_144  # bytes of a payload that is checked
_MAX_WORK: Final = 2 << 20  # bytes of a payload, times the evaluations at one place of it
_MAX_SUBSCHEMAS: Final = 2_000
_MAX_LEVELS: Final = 64  # of a schema
_MAX_EVALUATIONS: Final = 100  # of subschemas at one place of a payload
_VALUES: Final = 10  # objects and arrays of an enum that cost as much as an evaluation; others are looked up
_MAX_PAYLOAD_LEVELS: Final = 1_024  # that orjson reads
_MAX_EXPLAINED: Final = 16_384  # bytes of a payload of which is said what is wrong: collecting that costs memory
_PATTERN_BYTES: Final = 65_536  # of a compiled regular expression
_PATTERN_CACHE: Final = 1 << 20  # bytes
_FOREIGN: Final = ("$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary")
_DRAFTS: Final = ("draft-06", "draft-07", "draft/2019-09", "draft/2020-12")

# Keywords whose subschemas are about the same value, about the properties or the items of it: one, a list, a mapping.
_SAME: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_OF_PROPERTY: Final = ("properties", "additionalProperties", "unevaluatedProperties")
_OF_ITEM: Final = ("items", "prefixItems", "additionalItems", "unevaluatedItems")
_OF_EACH: Final = ("patternProperties", "propertyNames", "contains")
_APPLIED: Final = (*_SAME, *_OF_PROPERTY, *_OF_ITEM, *_OF_EACH)
_MAPPINGS: Final = ("dependentSchemas", "dependencies", "properties", "patternProperties", "$defs", "definitions")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


class JsonSchema:
    """A compiled JSON Schema."""

    __slots__ = ("_max_payload", "_validator", "document", "text")
    kind: Final = "JSON"

    def __init__(self, text: str) -> None:
        """Raises `InvalidSchema`."""
        self.text = text
        try:
            self.document: Any = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidSchema(f"it is not JSON: {error}") from error
        if not isinstance(self.document, dict | bool):
            raise InvalidSchema("a JSON Schema is an object, true or false")
        _check_dialect(self.document)
        self._max_payload = min(MAX_PAYLOAD, _MAX_WORK // _evaluations(self.document))
        try:
            self._validator: Any = jsonschema_rs.validator_for(
                self.document,
                pattern_options=jsonschema_rs.RegexOptions(_PATTERN_BYTES, _PATTERN_CACHE),
                offline=True,
                mask="the value",
            )
        except jsonschema_rs.ValidationError as error:
            raise InvalidSchema(shortened(_why(error))) from error
        except (ValueError, RecursionError) as error:
            raise InvalidSchema(shortened(str(error))) from error

    @property
    def canonical(self) -> bytes:
        """Equal for schemas that differ only in white space and in the order of keywords."""
        return orjson.dumps(self.document, option=orjson.OPT_SORT_KEYS)

    def check(self, payload: bytes) -> None:
        """Raises `InvalidPayload`."""
        if len(payload) > self._max_payload:
            raise InvalidPayload(f"it has more than {self._max_payload} bytes, and larger payloads are not checked")
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            raise InvalidPayload(shortened(f"it is not JSON: {error}")) from error
        try:
            if self._validator.is_valid(value):
                return
            if len(payload) <= _MAX_EXPLAINED:
                self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            raise InvalidPayload(shortened(_at(error))) from error
        except (ValueError, RecursionError) as error:
            raise InvalidPayload(shortened(str(error))) from error
        raise InvalidPayload("it does not match the schema")

    def check_framed(self, payload: bytes) -> None:
        """Check what follows a schema id. Raises `InvalidPayload`."""
        self.check(payload)


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(keyword, subschema) of all keywords of a schema that have subschemas."""
    for keyword in (*_APPLIED, "$defs", "definitions"):
        value = schema.get(keyword)
        if value is None:
            continue
        if keyword in _MAPPINGS:
            if not isinstance(value, dict):
                raise InvalidSchema(f"{keyword} is an object")
            # `dependencies` has lists of names too.
            yield from ((keyword, each) for each in value.values() if isinstance(each, dict | bool))
        elif isinstance(value, list) and keyword in (*_LISTS, "items"):
            yield from ((keyword, each) for each in value)
        else:
            yield keyword, value


def resolve(document: Any, reference: object) -> Any:
    """The subschema that `$ref` names. Raises `InvalidSchema`."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise InvalidSchema(shortened(f"$ref: {reference!r} is not in this schema; it begins with #/"))
    found = document
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and len(name) < 6 and int(name) < len(found):
            found = found[int(name)]
        else:
            raise InvalidSchema(shortened(f"$ref: there is no {reference!r}"))
    return found


def _check_dialect(document: Any) -> None:
    dialect = document.get("$schema") if isinstance(document, dict) else None
    if dialect is not None and not any(each in str(dialect) for each in _DRAFTS):
        raise InvalidSchema("$schema: the drafts 6, 7, 2019-09 and 2020-12 are known here")


def _evaluations(document: Any) -> int:
    """How many evaluations there may be at one place of a payload. Raises `InvalidSchema` if there are too many.

    They are counted for each subschema and each depth below the value that it is about.
    """
    schemas = _collected(document)
    most = 1
    own_cost: list[int] = []
    same: list[tuple[list[int], int]] = []
    below: list[tuple[list[int], list[int], list[int]]] = []
    numbers = {id(each): number for number, each in enumerate(schemas)}
    for schema in schemas:
        in_place, of_property, of_item, of_each = [], [], [], []
        values = schema.get("enum")
        large = [each for each in values if isinstance(each, list | dict)] if isinstance(values, list) else []
        own_cost.append(1 + len(large) // _VALUES)
        if "$ref" in schema:
            target = resolve(document, schema["$ref"])
            if isinstance(target, dict):
                in_place.append(numbers[id(target)])
        for keyword, each in subschemas(schema):
            if isinstance(each, dict):
                number = numbers[id(each)]
                if keyword in _SAME:
                    in_place.append(number)
                elif keyword in _OF_PROPERTY:
                    of_property.append(number)
                elif keyword in _OF_ITEM:
                    of_item.append(number)
                elif keyword in _OF_EACH:
                    of_each.append(number)
        # What is unevaluated is found by evaluating the others again.
        again = 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
        same.append((in_place, again))
        below.append((of_property, of_item, of_each))
    order = _in_place_order([each for each, _ in same])
    counts = [1] * len(schemas)
    for depth in range(_MAX_PAYLOAD_LEVELS):
        deeper = [0] * len(schemas)
        for number in order:
            of_property, of_item, of_each = below[number]
            if depth:
                own = max((counts[each] for each in of_property), default=0)
                own += max((counts[each] for each in of_item), default=0) + sum(counts[each] for each in of_each)
            else:
                own = own_cost[number]
            in_place, again = same[number]
            deeper[number] = again * (own + sum(deeper[each] for each in in_place))
            if deeper[number] > _MAX_EVALUATIONS:
                raise InvalidSchema(
                    f"some value may be evaluated more than {_MAX_EVALUATIONS} times: there are too many subschemas of "
                    "allOf, anyOf, $ref and the like, or objects in enum"
                )
        most = max(most, *deeper) if deeper else most
        if depth and deeper == counts:
            break
        counts = deeper
    return most


def _collected(document: Any) -> list[dict[str, Any]]:
    """All subschemas that are objects, also the targets of references."""
    found: dict[int, dict[str, Any]] = {}
    waiting: list[tuple[Any, int]] = [(document, 0)]
    while waiting:
        schema, level = waiting.pop()
        if not isinstance(schema, dict):
            if not isinstance(schema, bool):
                raise InvalidSchema("a subschema is an object, true or false")
            continue
        if id(schema) in found:
            continue
        found[id(schema)] = schema
        if len(found) > _MAX_SUBSCHEMAS or level > _MAX_LEVELS:
            raise InvalidSchema(f"a schema has at most {_MAX_SUBSCHEMAS} subschemas in {_MAX_LEVELS} levels")
        for keyword in _FOREIGN:
            if keyword in schema:
                raise InvalidSchema(f"{keyword} is not known here; $ref refers to parts of the schema")
        if level and "$id" in schema:
            raise InvalidSchema("$id: only the whole schema has one here")
        if "$ref" in schema:
            waiting.append((resolve(document, schema["$ref"]), level + 1))
        waiting.extend((each, level + 1) for _, each in subschemas(schema))
    return list(found.values())


def _in_place_order(edges: list[list[int]]) -> list[int]:
    """An order in which each schema comes after those that are evaluated with it. Raises `InvalidSchema`."""
    order: list[int] = []
    state = [0] * len(edges)  # 1: on the way, 2: in the order
    for start in range(len(edges)):
        path = [start]
        while path:
            number = path[-1]
            if state[number] == 0:
                state[number] = 1
                for each in edges[number]:
                    if state[each] == 1:
                        raise InvalidSchema("$ref: a schema refers to itself for one and the same value")
                    if state[each] == 0:
                        path.append(each)
            else:
                path.pop()
                if state[number] == 1:
                    state[number] = 2
                    order.append(number)
    return order


def _at(error: jsonschema_rs.ValidationError) -> str:
    return f"{_pointer(error.instance_path)}: {error.message}"


def _why(error: jsonschema_rs.ValidationError) -> str:
    path = _pointer(error.instance_path)
    if path.endswith(("/pattern", "/propertyNames")) or "patternProperties" in path or 'not a "regex"' in error.message:
        return (
            f"{path}: a regular expression that cannot be used: it is wrong, has a look-around or a back-reference, or "
            f"needs more than {_PATTERN_BYTES} bytes"
        )
    return f"{path}: {error.message}"


def _pointer(path: list[str | int]) -> str:
    return "/" + "/".join(str(each) for each in path)
