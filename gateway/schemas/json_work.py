"""How often a JSON Schema may be evaluated at one place of a payload: its subschemas and references as a graph."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.schemas.errors import InvalidSchema, shortened

_MAX_EVALUATIONS: Final = 100  # of subschemas at one place of a payload
_MAX_SUBSCHEMAS: Final = 2_000
_MAX_LEVELS: Final = 64  # of a schema
_LOOKS: Final = 10  # at a name, a pattern or a value of a schema, which cost as much as an evaluation
_NUMBER: Final = 20  # looks at a number of an enum: it is compared exactly with numbers that have a fraction
_EXACT: Final = 4  # evaluations of multipleOf or of a number in const: numbers may have 309 digits
_MAX_PAYLOAD_LEVELS: Final = 1_024  # that orjson reads
_FOREIGN: Final = ("$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary")

# Keywords whose subschemas are about the same value, about the properties or the items of it: one, a list, a mapping.
_SAME: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_OF_PROPERTY: Final = ("properties", "additionalProperties", "unevaluatedProperties")
_OF_ITEM: Final = ("items", "prefixItems", "additionalItems", "unevaluatedItems")
_OF_EACH: Final = ("patternProperties", "propertyNames", "contains")
_APPLIED: Final = (*_SAME, *_OF_PROPERTY, *_OF_ITEM, *_OF_EACH)
_MAPPINGS: Final = ("dependentSchemas", "dependencies", "properties", "patternProperties", "$defs", "definitions")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")


@dataclass(slots=True)
class _Node:
    """A subschema, and by their numbers those that are evaluated with it, or below it."""

    cost: int = 1  # of itself, in evaluations
    times: int = 1  # that it and those evaluated with it are evaluated
    same: list[int] = field(default_factory=list)  # about the same value
    of_property: list[int] = field(default_factory=list)  # one of them for each property
    of_item: list[int] = field(default_factory=list)  # one of them for each item
    of_each: list[int] = field(default_factory=list)  # all of them for each property or item


def evaluations(document: Any) -> int:
    """How many evaluations there may be at one place of a payload. Raises `InvalidSchema` if there are too many.

    They are counted for each subschema and each depth below the value that it is about.
    """
    nodes = _nodes(document)
    order = _in_place_order([each.same for each in nodes])
    counts = [0] * len(nodes)
    most = 1
    for depth in range(_MAX_PAYLOAD_LEVELS):
        deeper = [0] * len(nodes)
        for number in order:
            node = nodes[number]
            own = _below(node, counts) if depth else node.cost
            deeper[number] = node.times * (own + sum(deeper[each] for each in node.same))
        most = max(most, *deeper, 0)
        if most > _MAX_EVALUATIONS:
            raise InvalidSchema(
                f"some value may be evaluated more than {_MAX_EVALUATIONS} times: there are too many subschemas of "
                "allOf, anyOf, $ref and the like, or numbers, objects or arrays in enum"
            )
        if depth and deeper == counts:
            break
        counts = deeper
    return most


def _below(node: _Node, counts: list[int]) -> int:
    """The evaluations at a place below the value of a node. counts: by the numbers of nodes."""
    found = max((counts[each] for each in node.of_property), default=0)
    found += max((counts[each] for each in node.of_item), default=0)
    return found + sum(counts[each] for each in node.of_each)


def _nodes(document: Any) -> list[_Node]:
    schemas = _collected(document)
    numbers = {id(each): number for number, each in enumerate(schemas)}
    found = []
    for schema in schemas:
        node = _Node()
        node.cost += _looks(schema) // _LOOKS
        if "multipleOf" in schema or isinstance(schema.get("const"), int | float):
            node.cost += _EXACT
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            node.times = 2  # what is unevaluated is found by evaluating the others again
        if "$ref" in schema:
            target = resolve(document, schema["$ref"])
            if isinstance(target, dict):
                node.same.append(numbers[id(target)])
        places = (
            (_SAME, node.same),
            (_OF_PROPERTY, node.of_property),
            (_OF_ITEM, node.of_item),
            (_OF_EACH, node.of_each),
        )
        for keyword, each in subschemas(schema):
            if isinstance(each, dict):
                for keywords, place in places:
                    if keyword in keywords:
                        place.append(numbers[id(each)])
        found.append(node)
    # Patterns are looked at for each property, also those whose subschemas are true or false, which are no nodes.
    for schema, node in zip(schemas, found.copy(), strict=True):
        patterns = sum(isinstance(each, bool) for each in schema.get("patternProperties", {}).values())
        if patterns >= _LOOKS:
            node.of_each.append(len(found))
            found.append(_Node(cost=patterns // _LOOKS))
    return found


def _looks(schema: Mapping[str, Any]) -> int:
    """What an evaluation looks at one by one, beside subschemas that are objects."""
    found = 0
    values = schema.get("enum")
    if isinstance(values, list) and not all(each is None or isinstance(each, str) for each in values):
        # Texts alone are looked up.
        found += sum(_NUMBER if isinstance(each, int | float) else 1 for each in values)
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        names = schema.get(keyword)
        found += len(names) if isinstance(names, dict) else 0
    return found + sum(isinstance(each, bool) for keyword, each in subschemas(schema) if keyword in _LISTS)


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
