"""The OpenAPI 3.1 description of the management surface, from the descriptors and comments of `management.proto`."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from gateway.management.methods import METHODS, Method
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import TOPIC, Action, Kind, Right
from tests.openapi.protos import ROOT, compile_protos

FILE = ROOT / "gateway/management/openapi.json"

Json = dict[str, Any]
Comments = dict[str, str]

_TYPES: dict[int, Json] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0, "maximum": 0xFFFF_FFFF},
    FieldDescriptor.TYPE_INT64: {"type": ["string", "integer"], "format": "int64", "pattern": "^-?[0-9]{1,19}$"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
}
_OBJECT = "google.protobuf.Struct"  # any JSON object
OF_USERS = "a user"
_ERROR: Json = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {
        "code": {"type": "string", "description": "A code of gRPC, such as NOT_FOUND."},
        "message": {"type": "string", "description": "What is wrong, for people."},
    },
}


def description() -> Json:
    """The whole description."""
    comments = _comments()
    paths: dict[str, Json] = {}
    for method in METHODS:
        paths.setdefault(method.path, {})[method.verb.lower()] = _operation(method, comments)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice management", "version": "1", "description": comments[""]},
        "tags": [
            {"name": name, "description": comments[service.full_name]}
            for name, service in pb.DESCRIPTOR.services_by_name.items()
        ],
        "security": [{"password": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}},
            "schemas": {"Error": _ERROR, **dict(sorted(_schemas(comments)))},
        },
    }


def text() -> str:
    """The content of the file."""
    return json.dumps(description(), indent=1, ensure_ascii=False) + "\n"


def right_text(right: Right) -> str:
    """A right in words: `GET group {group}`."""
    kind = Kind.Name(right.kind).lower()
    name = right.name or (f"{{{right.field}}}" if right.field else "of each message" if right.each else "")
    name = name or ("#" if right.kind == TOPIC else "*")
    owner = ", or own it" if right.or_owner else ""
    return f"{Action.Name(right.action)} {kind} {name}{'/#' if right.below else ''}{owner}"


def _operation(method: Method, comments: Comments) -> Json:
    about = comments[f"{pb.DESCRIPTOR.package}.{method.service}.{method.name}"]
    in_path = re.findall(r"\{(\w+)\}", method.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _field(method.request.DESCRIPTOR.fields_by_name[name])}
        for name in in_path
    ]
    others = [field for field in method.request.DESCRIPTOR.fields if field.name not in in_path]
    if not method.has_body:
        parameters += [
            _described({"name": field.name, "in": "query", "schema": _field(field)}, field.full_name, comments)
            for field in others
        ]
    operation: Json = {
        "operationId": method.name,
        "tags": [method.service],
        "summary": re.split(r"(?<=[.:]) ", about)[0].rstrip(".:"),
        "description": about,
        "x-requires": [OF_USERS] if method.of_users else [right_text(right) for right in method.rights],
        "parameters": parameters,
    }
    if method.has_body:
        properties = {field.name: _described(_field(field), field.full_name, comments) for field in others}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    operation["responses"] = {
        "200": _content("The reply.", _reference(method.reply.DESCRIPTOR)),
        "default": _content("An error.", {"$ref": "#/components/schemas/Error"}),
    }
    return operation


def _content(about: str, schema: Json) -> Json:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _schemas(comments: Comments) -> Iterator[tuple[str, Json]]:
    """The schemas of replies, and of the messages in requests and replies."""
    left = [method.reply.DESCRIPTOR for method in METHODS]
    left += [
        field.message_type
        for method in METHODS
        for field in method.request.DESCRIPTOR.fields
        if field.message_type is not None
    ]
    known: set[str] = set()
    while left:
        message = left.pop()
        if message.name in known or message.full_name == _OBJECT:
            continue
        known.add(message.name)
        properties = {field.name: _described(_field(field), field.full_name, comments) for field in message.fields}
        yield message.name, _described({"type": "object", "properties": properties}, message.full_name, comments)
        left += [
            field.message_type
            for field in message.fields
            if field.message_type is not None and not field.message_type.GetOptions().map_entry
        ]


def _field(field: FieldDescriptor) -> Json:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _field(message.fields_by_name["value"])}
    schema = _reference(message) if message is not None else _scalar(field)
    return {"type": "array", "items": schema} if field.is_repeated else schema


def _scalar(field: FieldDescriptor) -> Json:
    names: EnumDescriptor | None = field.enum_type
    return {"type": "string", "enum": [value.name for value in names.values]} if names else dict(_TYPES[field.type])


def _reference(message: Descriptor) -> Json:
    if message.full_name == _OBJECT:
        return {"type": "object"}
    return {"$ref": f"#/components/schemas/{message.name}"}


def _described(schema: Json, name: str, comments: Comments) -> Json:
    return schema | ({"description": comments[name]} if name in comments else {})


def _comments() -> Comments:
    """The comments of `management.proto`, by the full name of what they are about; "": of the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "descriptors"
        compile_protos("--include_source_info", f"--descriptor_set_out={path}")
        files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    file = next(each for each in files if each.name.endswith("management.proto"))
    found: Comments = {}
    for location in file.source_code_info.location:
        comment = location.leading_comments or location.trailing_comments
        if list(location.path) == [12]:  # of the syntax
            found[""] = _joined(comment or location.leading_detached_comments[0])
        elif comment:
            name = _name_at(file, list(location.path))
            if name:
                found[f"{file.package}.{name}"] = _joined(comment)
    return found


def _name_at(file: descriptor_pb2.FileDescriptorProto, path: list[int]) -> str:
    """The name of a message, a field, a service or a method, from its path in the file; "": it is none of these."""
    match path:
        case [4, message]:
            return file.message_type[message].name
        case [4, message, 2, field]:
            return f"{file.message_type[message].name}.{file.message_type[message].field[field].name}"
        case [6, service]:
            return file.service[service].name
        case [6, service, 2, method]:
            return f"{file.service[service].name}.{file.service[service].method[method].name}"
    return ""


def _joined(comment: str) -> str:
    """A comment without the breaks of its lines; a blank line stays one."""
    return "\n\n".join(" ".join(part.split()) for part in comment.split("\n\n"))
