"""Protobuf schemas: .proto files are read as protoc reads them, payloads are checked, and files are compared."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from gateway.schemas.errors import InvalidPayload, InvalidSchema
from gateway.schemas.proto_text import descriptor_of
from gateway.schemas.protobuf import ProtobufSchema
from gateway.schemas.protobuf_compatibility import unreadable

LARGE = """
syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto";
option java_package = "x";
// A comment.
message Reading {
  double t = 1;
  optional string unit = 2;
  google.protobuf.Timestamp at = 3;
  map<string, Inner> by_name = 4;
  repeated int32 xs = 5 [packed = false];
  message Inner { Kind kind = 1; }
  enum Kind { option allow_alias = true; A = 0; B = 1; C = 1; }
  oneof o { string x = 6; Inner y = 7; }
  reserved 10 to 12, 20;
  reserved "foo";
}
message Other { Reading.Inner i = 1; .a.b.Reading r = 2; }
service S { rpc X(Reading) returns (Other); }
"""
TWO = 'syntax = "proto2"; message A { required int32 a = 1; optional string b = 2 [default = "x"]; }'
READING = ProtobufSchema('syntax = "proto3"; message R { double t = 1; string u = 2; message I { int32 i = 1; } }')
VALUE = b"\x09" + struct.pack("<d", 3)


@pytest.mark.parametrize("text", [LARGE, TWO])
def test_a_file_is_read_as_protoc_reads_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "schema.proto").write_text(text)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"-o{tmp_path}/set", "schema.proto"]
    subprocess.run(command, check=True, timeout=60)
    expected = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file[0]
    schema = ProtobufSchema(text)
    found = type(expected)()
    pool = schema.messages[0].file.pool
    pool.FindFileByName("schema.proto").CopyToProto(found)
    for each in (expected, found):
        each.ClearField("options")
        each.ClearField("service")
        for message in each.message_type:
            for field in message.field:
                field.ClearField("json_name")
                field.ClearField("default_value")
            for inner in message.nested_type:
                for field in inner.field:
                    field.ClearField("json_name")
    if expected.syntax == "":
        found.ClearField("syntax")
    assert found == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "without a message"),
        ("x", "line 1, column 1"),
        ('syntax = "proto3"; message A { string a = 1', "line 1, column 44"),
        ('syntax = "proto4"; message A {}', '"proto2" and "proto3"'),
        ('syntax = "proto3"; message A { B b = 1; }', "couldn't resolve name 'B'"),
        ('syntax = "proto3"; message A { string a = 1; string b = 1; }', "duplicate field number"),
        ('syntax = "proto3"; message A { required string a = 1; }', "cannot be required"),
        ('syntax = "proto3"; enum E { A = 1; } message M { E e = 1; }', "the first value must be zero"),
        ('syntax = "proto3"; import "other.proto"; message A {}', "only Google's well-known types"),
        ("message A { optional string a = 99999999999; }", "it is no .proto file"),
        ("message A { extensions 100 to 200; }", "extensions and groups are not supported"),
        ("message A { optional group B = 1 { optional int32 c = 2; } }", "extensions and groups are not supported"),
        ("message A {" * 400 + "}" * 400, "too deep"),
        ("message A {" * 40 + "}" * 40, "at most 32 others"),
    ],
)
def test_files_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        ProtobufSchema(text)
    assert why in str(caught.value)


def test_payloads_are_checked() -> None:
    READING.check(VALUE)
    READING.check(b"")  # all fields have their defaults
    ProtobufSchema(TWO).check(b"\x08\x01")
    for schema, payload, why in (
        (READING, VALUE[:-1], "it is no R"),
        (READING, b"\x12\x02\xff\xff", "bad UTF-8"),
        (READING, VALUE + b"\x18\x01", "it has fields that R does not have"),
        (READING, b'{"t": 1}', "it is no R"),
        (READING, bytes(262_145), "more than 262144 bytes"),
        (ProtobufSchema(TWO), b"", "required fields of A are missing: a"),
    ):
        with pytest.raises(InvalidPayload) as caught:
            schema.check(payload)
        assert why in str(caught.value)


def test_indexes_in_front_of_a_payload_name_its_message() -> None:
    for indexes in (b"\x00", b"\x02\x00"):
        READING.check_framed(indexes + VALUE)
    READING.check_framed(b"\x04\x00\x00\x08\x01")  # R.I
    for wrong in (b"", b"\xff" * 9, b"\x02\x06", b"\x02\x01", b"\x01", b"\x00" + VALUE[:-1]):
        with pytest.raises(InvalidPayload):
            READING.check_framed(wrong)


@pytest.mark.parametrize(
    ("reader", "writer", "why"),
    [
        ("message R { double t = 1; string u = 2; }", "message R { double t = 1; }", ""),
        ("message R { double t = 1; }", "message R { double temp = 1; string u = 2; }", ""),
        ("message R { int64 a = 1; bytes b = 2; }", "message R { uint32 a = 1; string b = 2; }", ""),
        (
            "message R { sint32 a = 1; }",
            "message R { int32 a = 1; }",
            "expects a zigzag varint, and the writer has a varint",
        ),
        ("message R { float t = 1; }", "message R { double t = 1; }", "expects a float, and the writer has a double"),
        ("message R { repeated double t = 1; }", "message R { double t = 1; }", "repeated in one of them only"),
        (
            "message R { I i = 1; message I { float f = 1; } }",
            "message R { I i = 1; message I { double f = 1; } }",
            "I.f",
        ),
        ("message R {}", "message R {} message S {}", "S: the reader does not have this message"),
        ("message S {} message R {}", "message R {} message S {}", "the first message of the reader is S, not R"),
        (
            "message R { oneof o { int32 a = 1; int32 b = 2; } }",
            "message R { int32 a = 1; int32 b = 2; }",
            "in one oneof",
        ),
        (
            "message R { oneof o { int32 a = 1; int32 b = 2; } }",
            "message R { oneof p { int32 a = 1; int32 b = 2; } }",
            "",
        ),
        ("message R { R r = 1; map<string, R> m = 2; }", "message R { R r = 1; map<string, R> m = 2; }", ""),
    ],
)
def test_files_are_compared(reader: str, writer: str, why: str) -> None:
    syntax = 'syntax = "proto3"; '
    found = unreadable(ProtobufSchema(syntax + reader), ProtobufSchema(syntax + writer))
    assert (why in found[0] and len(found) == 1) if why else found == []


def test_required_fields_are_compared() -> None:
    without = ProtobufSchema("message A { optional int32 a = 1; }")
    assert "requires it, and the writer may leave it out" in unreadable(ProtobufSchema(TWO), without)[0]
    assert unreadable(without, ProtobufSchema(TWO)) == []
    assert "the writer does not have it" in unreadable(ProtobufSchema(TWO), ProtobufSchema("message A {}"))[0]


def test_what_makes_no_difference() -> None:
    spaced = ProtobufSchema('syntax = "proto3";\n// x\nmessage R { double t = 1; }')
    assert spaced.canonical == ProtobufSchema('syntax = "proto3"; message R { double t = 1; }').canonical
    assert descriptor_of("message A {}", "x.proto").name == "x.proto"
