"""JSON Schemas: what is accepted, what payloads match, and what hostile ones cost."""

import json

import pytest

from gateway.schemas.errors import MAX_FAULT, InvalidPayload, InvalidSchema
from gateway.schemas.json_schema import JsonSchema

READING = {
    "type": "object",
    "properties": {"t": {"type": "number"}},
    "required": ["t"],
    "additionalProperties": False,
}


def schema(document: object) -> JsonSchema:
    return JsonSchema(json.dumps(document))


def fault(document: object, payload: bytes) -> str:
    with pytest.raises(InvalidPayload) as caught:
        schema(document).check(payload)
    return str(caught.value)


def test_payloads_are_checked() -> None:
    reading = schema(READING)
    reading.check(b'{"t": 1.5}')
    assert fault(READING, b'{"t": "secret"}') == '/t: the value is not of type "number"'
    assert fault(READING, b"{}") == '/: "t" is a required property'
    assert fault(READING, b'{"t":1,"x":2}') == "/: Additional properties are not allowed ('x' was unexpected)"
    assert fault(READING, b"t=1").startswith("it is not JSON: ")
    assert fault(READING, b"").startswith("it is not JSON: ")


def test_a_fault_is_one_short_line() -> None:
    name = "x\n" * 5000
    text = fault(READING, json.dumps({"t": 1, name: 2}).encode())
    assert len(text) <= MAX_FAULT and "\n" not in text
    # Of large payloads is not said what is wrong: to find it takes memory for each part of them.
    assert fault({"items": {"anyOf": [{"type": "string"}]}}, b"[" + b"1," * 20_000 + b"1]") == (
        "it does not match the schema"
    )
    assert "more than 262144 bytes" in fault(READING, b" " * 262_145)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (3, "an object, true or false"),
        ({"type": "foo"}, "/type: "),
        ({"required": 1}, "/required: "),
        ({"properties": {"a": 3}}, "/properties/a: "),
        ({"properties": []}, "properties is an object"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "the drafts 6, 7, 2019-09 and 2020-12"),
        ({"$ref": "http://example.com/x"}, "is not in this schema"),
        ({"$ref": "file:///etc/passwd"}, "is not in this schema"),
        ({"$ref": "#/no/such"}, "there is no '#/no/such'"),
        ({"properties": {"a": {"$id": "other"}}}, "only the whole schema has one"),
        ({"$dynamicRef": "#a"}, "$dynamicRef is not known here"),
        ({"pattern": "(?=a)b"}, "a regular expression that cannot be used"),
        ({"pattern": r"(a)\1"}, "a regular expression that cannot be used"),
        ({"pattern": "((a{1000}){1000}){100}"}, "more than 65536 bytes"),
        ({"patternProperties": {"(?:[a-z]{1,100}){50}x": True}}, "more than 65536 bytes"),
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
    ],
)
def test_schemas_that_are_refused(document: object, why: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        schema(document)
    assert why in str(caught.value)


def test_schemas_that_would_be_evaluated_too_often_are_refused() -> None:
    doubled = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(18)}
    deeper = {"allOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}}]}
    for document in ({"$ref": "#/$defs/a0", "$defs": {**doubled, "a18": False}}, deeper):
        with pytest.raises(InvalidSchema, match="evaluated more than 100 times"):
            schema(document)
    ring = {f"n{i}": {"items": {"$ref": f"#/$defs/n{(i + 1) % 25}"}} for i in range(25)}
    schema({"$ref": "#/$defs/n0", "$defs": ring}).check(b"[[[]]]")
    with pytest.raises(InvalidSchema, match="at most 2000 subschemas"):
        schema({"$defs": {str(i): {} for i in range(3000)}})


def test_schemas_that_are_evaluated_often_check_smaller_payloads() -> None:
    many = {"items": {"allOf": [{"minimum": 0.1}] * 90}}
    schema(many).check(b"[" + b"1," * 10_000 + b"1]")
    assert "more than 23045 bytes" in fault(many, b"[" + b"1," * 20_000 + b"1]")
    assert "not JSON" in fault({"enum": [str(number) for number in range(5000)]}, b" " * 200_000)
    assert "more than 190650 bytes" in fault({"enum": [[number] for number in range(100)]}, b" " * 200_000)
    with pytest.raises(InvalidSchema, match="objects or arrays in enum"):
        schema({"enum": [{"a": number} for number in range(1000)]})


@pytest.mark.parametrize(
    ("keywords", "max_payload"),
    [
        ({"enum": [1, 2, 3]}, 262_144),
        ({"enum": list(range(30))}, 34_379),
        ({"enum": ["a"] + [1] * 30}, 34_379),
        ({"multipleOf": 0.1}, 262_144),
        ({"const": 1}, 262_144),
        ({"anyOf": [{"const": 1}] * 18}, 23_045),
        ({"allOf": [{"multipleOf": 0.1}] * 18}, 23_045),
        ({"dependentRequired": {str(number): [] for number in range(200)}}, 99_864),
        ({"dependentSchemas": {str(number): True for number in range(200)}}, 99_864),
        ({"patternProperties": {str(number): True for number in range(200)}}, 104_857),
        ({"anyOf": [False] * 200 + [True]}, 99_864),
        ({"properties": {str(number): {} for number in range(1000)}}, 262_144),
    ],
)
def test_keywords_that_look_at_many_names_or_values_check_smaller_payloads(
    keywords: dict[str, object], max_payload: int
) -> None:
    few = {"items": keywords}
    assert "not JSON" in fault(few, b" " * max_payload)
    assert "bytes, and larger payloads" in fault(few, b" " * (max_payload + 1))


@pytest.mark.parametrize(
    "keywords",
    [
        {"enum": list(range(5000))},
        {"dependentRequired": {str(number): [] for number in range(5000)}},
        {"dependentSchemas": {str(number): True for number in range(4000)}},
        {"patternProperties": {str(number): True for number in range(4000)}},
    ],
)
def test_schemas_that_look_at_thousands_of_values_are_refused(keywords: dict[str, object]) -> None:
    with pytest.raises(InvalidSchema, match="evaluated more than 100 times"):
        schema({"items": keywords})


def test_hostile_payloads_end() -> None:
    tree = schema({"type": "array", "items": {"$ref": "#"}})
    tree.check(b"[" * 1000 + b"]" * 1000)
    assert "not JSON" in fault(True, b"[" * 2000 + b"]" * 2000)
    assert fault({"pattern": "^(a+)+$"}, b'"' + b"a" * 200_000 + b'!"') == "it does not match the schema"
    schema({"uniqueItems": True}).check(json.dumps(list(range(30_000))).encode())


def test_what_makes_no_difference() -> None:
    assert (
        JsonSchema('{"type":"object", "title":"a"}').canonical == JsonSchema('{"title":"a","type":"object"}').canonical
    )
    assert JsonSchema('{"type":"object"}').canonical != JsonSchema('{"type":"array"}').canonical
