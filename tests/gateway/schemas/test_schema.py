"""Levels of compatibility, inference, entries of the bucket, and checks of payloads by topic."""

import json
import struct

import pytest

from gateway.mqtt.properties import read_message_block
from gateway.schemas.entries import Binding, Mode, binding_key, check_binding, subject_key
from gateway.schemas.errors import InvalidPayload, InvalidSchema
from gateway.schemas.inference import inferred
from gateway.schemas.kinds import LEVELS, Schema
from gateway.schemas.payload_checks import PayloadChecks, SubjectCheck
from gateway.schemas.schema import incompatible, parse_schema


def proto(*fields: str) -> Schema:
    return parse_schema("PROTOBUF", 'syntax = "proto3"; message R { ' + " ".join(fields) + " }")


def of_record(*fields: object) -> Schema:
    named = [{"name": name, "type": "int", **more} for name, more in fields]  # type: ignore[misc, dict-item, attr-defined]
    return parse_schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": named}))


PLAIN: dict[str, object] = {}
OPTIONAL = {"default": 0}
ONE = of_record(("a", PLAIN))
ADDED = of_record(("a", PLAIN), ("b", OPTIONAL))
DEMANDED = of_record(("a", PLAIN), ("b", PLAIN))
OTHER = of_record(("b", PLAIN))


@pytest.mark.parametrize(
    ("new", "allowed"),
    [
        (ADDED, set(LEVELS)),
        (DEMANDED, {"NONE", "FORWARD", "FORWARD_TRANSITIVE"}),
        (OTHER, {"NONE"}),
    ],
)
def test_levels(new: Schema, allowed: set[str]) -> None:
    assert {each for each in LEVELS if not incompatible(each, new, [(1, ONE)])} == allowed


def test_levels_that_are_transitive_look_at_all_versions() -> None:
    versions = [(1, DEMANDED), (2, ADDED)]
    assert incompatible("FORWARD", ONE, versions) == []
    found = incompatible("FORWARD_TRANSITIVE", ONE, versions)
    assert found == ["to be read by version 1: /b: the writer does not have it, and the reader has no default"]
    assert incompatible("BACKWARD", parse_schema("JSON", "true"), versions) == [
        "to read version 2: /: the reader has JSON, and the writer AVRO"
    ]
    assert incompatible("FULL_TRANSITIVE", ONE, []) == []


def test_a_schema_has_a_kind_and_a_size() -> None:
    with pytest.raises(InvalidSchema, match="'XML' is no kind of schema: AVRO, JSON, PROTOBUF"):
        parse_schema("XML", "")
    with pytest.raises(InvalidSchema, match="at most 65536 bytes"):
        parse_schema("JSON", '"' + "x" * 65_536 + '"')


def test_a_schema_is_inferred() -> None:
    text, count = inferred([b'{"t": 1}', b'{"t": 1.5, "at": null}', b"\xff", b'{"t": 2, "tags": ["a"]}'])
    schema = json.loads(text)
    assert count == 3
    assert schema["required"] == ["t"] and schema["properties"]["t"] == {"type": "number"}
    checked = parse_schema("JSON", text)
    checked.check(b'{"t": 7, "more": true}')
    with pytest.raises(InvalidPayload):
        checked.check(b"{}")
    for payloads, why in (
        ([b"\xff"], "none of"),
        ([], "none of"),
        ([b'{"%d": 1}' % i for i in range(5000)], "too many"),
    ):
        with pytest.raises(InvalidPayload, match=why):
            inferred(payloads)


def test_keys_of_entries() -> None:
    assert subject_key("fleet-value") == b"subject/fleet-value"
    assert binding_key("fleet/+/temp") == b"binding/fleet/%2B/temp"
    assert binding_key("é/#") == b"binding/%C3%A9/%23"
    for name in ("", "a/b", "-a", "x" * 129, "é"):
        with pytest.raises(InvalidSchema, match="not the name of a subject"):
            subject_key(name)
    for topic_filter in ("", "a/#/b", "$SYS/#", "$share/g/a", "a" * 241, "+/" * 70):
        with pytest.raises(InvalidSchema, match="topic filter"):
            binding_key(topic_filter)


def test_a_binding_has_a_topic_for_quarantine_or_none() -> None:
    check_binding(Binding("a/#", "s", "quarantine", quarantine="bad/a"))
    for wrong in (
        Binding("a/#", "s", "quarantine"),
        Binding("a/#", "s", "quarantine", quarantine="a/+"),
        Binding("a/#", "s", "quarantine", quarantine="$SYS/a"),
        Binding("a/#", "s", "mark", quarantine="bad/a"),
        Binding("a/#", "", "mark"),
        Binding("#/a", "s", "mark"),
    ):
        with pytest.raises(InvalidSchema):
            check_binding(wrong)


def bound(topic_filter: str, mode: Mode, check: SubjectCheck) -> tuple[Binding, SubjectCheck]:
    return Binding(topic_filter, check.subject, mode, quarantine="bad" if mode == "quarantine" else ""), check


def test_checks_are_bound_to_topics() -> None:
    checks = PayloadChecks()
    assert not checks.is_active
    numbers = SubjectCheck("numbers", parse_schema("JSON", '{"type": "number"}'), {})
    texts = SubjectCheck("texts", parse_schema("JSON", '{"type": "string"}'), {})
    checks.replace([bound("a/#", "mark", numbers), bound("a/+", "quarantine", texts), bound("a/b", "refuse", numbers)])
    assert checks.is_active
    number = 'the value is not of type "number"'
    text = 'the value is not of type "string"'
    assert checks.fault(b"other", b"x") is None
    assert checks.fault(b"a/x/y", b"1") is None
    marked = checks.fault(b"a/x/y", b'"x"')
    assert marked is not None and (marked.mode, marked.subject, marked.text) == ("mark", "numbers", f"/: {number}")
    assert read_message_block(marked.properties(b"a/x/y")).user == [
        ("schema-error", f"/: {number}"),
        ("schema-subject", "numbers"),
    ]
    moved = checks.fault(b"a/x", b"1")
    assert moved is not None and (moved.mode, moved.text, moved.quarantine) == ("quarantine", f"/: {text}", b"bad")
    assert ("schema-topic", "a/x") in read_message_block(moved.properties(b"a/x")).user
    # The strictest of those that it fails decides.
    refused = checks.fault(b"a/b", b"[]")
    assert refused is not None and refused.reason == f"the payload does not match the schema numbers: /: {number}"
    strictest = checks.fault(b"a/b", b"1")
    assert strictest is not None and strictest.subject == "texts"
    assert checks.figures() == {"payloads_marked": 1, "payloads_quarantined": 2, "payloads_refused": 1}
    checks.replace([])
    assert not checks.is_active and checks.fault(b"a/b", b"[]") is None


def test_payloads_may_name_their_schema() -> None:
    old, new = parse_schema("JSON", '{"type": "number"}'), parse_schema("JSON", '{"type": "string"}')
    check = SubjectCheck("s", new, {7: old, 9: new})
    check.check(b'"x"')
    check.check(b"\x00\x00\x00\x00\x071")
    check.check(b'\x00\x00\x00\x00\x09"x"')
    for payload, why in (
        (b'\x00\x00\x00\x00\x07"x"', "not of type"),
        (b'\x00\x00\x00\x00\x08"x"', "schema 8 is not one of"),
    ):
        with pytest.raises(InvalidPayload, match=why):
            check.check(payload)
    value = b"\x09" + struct.pack("<d", 1)
    both = proto("double t = 1;")
    SubjectCheck("p", both, {300: both}).check(b"\x00\x00\x00\x01\x2c\x00" + value)
    # A value of Avro may begin with a zero, too.
    pair = of_record(*((name, PLAIN) for name in "abcde"))
    avro = SubjectCheck("a", pair, {1: ONE})
    for payload in (b"\x00\x00\x00\x00\x01\x02", b"\x00\x02\x02\x02\x02", b"\x00\x00\x00\x00\x01"):
        if payload != b"\x00\x00\x00\x00\x01":
            avro.check(payload)
    with pytest.raises(InvalidPayload):
        avro.check(b"\x00\x00\x00\x00")
