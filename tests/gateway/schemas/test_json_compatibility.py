"""Whether one JSON Schema accepts all that another accepts: cases, and a search for a lie."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.schemas.errors import InvalidPayload, InvalidSchema
from gateway.schemas.json_compatibility import unreadable
from gateway.schemas.json_schema import JsonSchema

OPEN = {"type": "object", "properties": {"t": {"type": "number"}}, "required": ["t"]}
CLOSED = {**OPEN, "additionalProperties": False}
MORE = {**OPEN, "properties": {"t": {"type": "number"}, "h": {"type": "number"}}}
TREE = {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}, "v": {"type": "integer"}}}
LIST = {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"n": {"$ref": "#"}}}]}


def schema(document: object) -> JsonSchema:
    return JsonSchema(json.dumps(document))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (OPEN, {**OPEN, "title": "of something"}),
        (OPEN, MORE),
        ({**MORE, "additionalProperties": False}, CLOSED),
        (OPEN, CLOSED),
        ({**OPEN, "required": []}, OPEN),
        ({"type": ["number", "null"]}, {"type": "integer"}),
        ({"type": "string"}, {"enum": ["a", "b"]}),
        ({"enum": ["a", "b", "c"]}, {"enum": ["a", "b"]}),
        ({"minimum": 0}, {"minimum": 1}),
        ({"maxLength": 10}, {"maxLength": 5}),
        ({**TREE, "properties": {**TREE["properties"], "v": {"type": "number"}}}, TREE),  # type: ignore[dict-item]
        ({"anyOf": [*LIST["anyOf"], {"type": "string"}]}, LIST),
        ({"allOf": [OPEN, {"minProperties": 1}]}, {"allOf": [{"minProperties": 2}, OPEN]}),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, {"type": "integer"}),
        ({"items": {"type": "number"}}, {"items": {"type": "integer"}}),
        ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}}, OPEN),
        ({}, OPEN),
    ],
)
def test_it_accepts_all(reader: object, writer: object) -> None:
    assert unreadable(schema(reader), schema(writer)) == []


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        (MORE, OPEN, "#/properties/h/: the writer may have this property with other values"),
        (CLOSED, OPEN, "#/additionalProperties/: the writer may have other properties"),
        (CLOSED, {**MORE, "additionalProperties": False}, "does not accept the property 'h'"),
        ({**OPEN, "required": ["t", "u"]}, OPEN, "#/required: the writer may leave out 'u'"),
        ({"type": "integer"}, {"type": "number"}, "#/type: the reader does not accept number"),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, "does not accept 'b'"),
        ({"minimum": 1}, {"minimum": 0}, "#/minimum: the reader has 1, and the writer 0"),
        ({"maxLength": 5}, {}, "the writer no limit"),
        (TREE, {**TREE, "properties": {**TREE["properties"], "v": {"type": "number"}}}, "#/properties/v/type"),  # type: ignore[dict-item]
        (LIST, {"anyOf": [*LIST["anyOf"], {"type": "string"}]}, "no branch of the reader"),
        ({"pattern": "a"}, {"pattern": "b"}, "#/pattern: it cannot be compared"),
        ({"not": {"type": "string"}}, {}, "#/not: the writer does not have it"),
        (False, OPEN, "accepts nothing"),
        ({"type": "number", "$schema": "http://json-schema.org/draft-07/schema#"}, {"type": "number"}, "two drafts"),
    ],
)
def test_it_may_refuse(reader: object, writer: object, why: str) -> None:
    assert why in unreadable(schema(reader), schema(writer))[0]


def test_a_keyword_beside_a_reference_counts_in_new_drafts_only() -> None:
    for dialect, holds in (
        ("https://json-schema.org/draft/2020-12/schema", True),
        ("http://json-schema.org/draft-07/schema", False),
    ):
        defs = {"definitions": {"any": {}}, "$schema": dialect}
        writer = schema({**defs, "properties": {"a": {"$ref": "#/definitions/any", "type": "string"}}})
        reader = schema({**defs, "properties": {"a": {"type": "string"}}})
        assert (unreadable(reader, writer) == []) is holds


_names = st.sampled_from(["a", "b"])
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from([0.5, 1.0]), st.sampled_from(["", "a", "bb"])
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=2), max_leaves=6
)
_types = st.sampled_from(["null", "boolean", "object", "array", "number", "string", "integer"])


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": _types | st.lists(_types, min_size=1, max_size=3, unique=True),
            "enum": st.lists(_values, min_size=1, max_size=3),
            "minimum": st.integers(-1, 2),
            "exclusiveMaximum": st.integers(0, 3),
            "minLength": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "minProperties": st.integers(0, 2),
            "required": st.lists(_names, unique=True, max_size=2),
            "properties": st.dictionaries(_names, inner, max_size=2),
            "patternProperties": st.dictionaries(_names, inner, max_size=1),
            "additionalProperties": inner,
            "unevaluatedProperties": st.booleans(),
            "items": inner,
            "prefixItems": branches,
            "contains": inner,
            "minContains": st.integers(0, 1),
            "uniqueItems": st.booleans(),
            "allOf": branches,
            "anyOf": branches,
            "oneOf": branches,
            "not": inner,
            "if": inner,
            "then": inner,
            "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
        },
    ).map(lambda found: dict(list(found.items())[:4]))


_schemas = st.recursive(st.booleans() | st.just({}), _keywords, max_leaves=5)
_defs = st.fixed_dictionaries(
    {"x": st.sampled_from([True, {"type": "number"}]), "y": st.sampled_from([{"minLength": 1}, False])}
)


@settings(max_examples=400, deadline=None)
@given(st.data(), _schemas, _defs)
def test_no_payload_of_a_writer_is_refused_by_a_reader_that_accepts_all(
    data: st.DataObject, writer: Any, defs: Any
) -> None:
    """The reader is the writer with something changed, so that many are compatible."""
    writer = {"$defs": defs, **writer} if isinstance(writer, dict) else writer
    if isinstance(writer, dict) and data.draw(st.booleans()):
        reader: Any = {k: v for k, v in writer.items() if k == "$defs" or data.draw(st.integers(0, 2))}
        reader |= data.draw(_keywords(_schemas)) if data.draw(st.booleans()) else {}
    else:
        reader = {"$defs": data.draw(_defs), "anyOf": [writer, data.draw(_schemas)]}
        reader["anyOf"][0] = {k: v for k, v in writer.items() if k != "$defs"} if isinstance(writer, dict) else writer
    try:
        reads, wrote = schema(reader), schema(writer)
    except InvalidSchema:
        return
    if unreadable(reads, wrote):
        return
    for value in data.draw(st.lists(_values, min_size=12, max_size=12)):
        payload = json.dumps(value).encode()
        try:
            wrote.check(payload)
        except InvalidPayload:
            continue
        reads.check(payload)
