"""The methods of the management surface, read from the descriptors of `management.proto`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.api import annotations_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gateway.management.proto import management_pb2 as pb
from gateway.management.proto import options_pb2

_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")
_CHANGES: Final = frozenset((options_pb2.PUB, options_pb2.CREATE, options_pb2.UPDATE, options_pb2.DELETE))


@dataclass(slots=True, frozen=True)
class Method:
    """A method, with its rights and its place in HTTP."""

    service: str  # such as `Topics`
    name: str  # such as `ListTopics`
    coroutine: str  # that implements it: `list_topics`
    request: type[Message]
    reply: type[Message]
    rights: Sequence[options_pb2.Right]  # that its caller must have, all of them
    takes_long: bool  # it may take minutes
    is_traffic: bool  # applications call it for their messages
    of_users: bool  # every user may call it for itself, without a rule
    verb: str  # of HTTP: GET, POST, PUT or DELETE
    path: str  # of HTTP, with fields of the request in braces
    has_body: bool  # the HTTP request has a JSON object with the other fields; else they are in the query

    @property
    def full_name(self) -> str:
        """As in the path of gRPC: `sluice.management.v1.Topics/ListTopics`."""
        return f"{PACKAGE}.{self.service}/{self.name}"

    @property
    def changes(self) -> bool:
        """Whether it changes something, and is not only a look."""
        return any(right.action in _CHANGES for right in self.rights) or (self.of_users and self.verb != "GET")


PACKAGE: Final[str] = pb.DESCRIPTOR.package


def _method(about: MethodDescriptor) -> Method:
    extensions: Any = about.GetOptions().Extensions
    rule = extensions[annotations_pb2.http]
    verb = rule.WhichOneof("pattern")
    return Method(
        about.containing_service.name,
        about.name,
        _CAPITAL.sub("_", about.name).lower(),
        GetMessageClass(about.input_type),
        GetMessageClass(about.output_type),
        tuple(extensions[options_pb2.requires]),
        extensions[options_pb2.takes_long],
        extensions[options_pb2.is_traffic],
        extensions[options_pb2.of_users],
        verb.upper(),
        getattr(rule, verb),
        bool(rule.body),
    )


METHODS: Final = tuple(
    _method(method) for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods
)
