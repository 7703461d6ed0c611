"""Protobuf messages of .proto files in proto2 and proto3."""

from importlib import import_module
from typing import Any, Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from gateway.schemas.errors import InvalidPayload, InvalidSchema, shortened
from gateway.schemas.proto_text import descriptor_of

MAX_PAYLOAD: Final = 262_144  # bytes of a payload that is checked
_FILE: Final = "schema.proto"
_MAX_INDEXES: Final = 32
_IMPORTS: Final = ("any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type")
_IMPORTED: Final = {f"google/protobuf/{each}.proto": f"google.protobuf.{each}_pb2" for each in (*_IMPORTS, "wrappers")}


class ProtobufSchema:
    """The messages of a .proto file, compiled."""

    __slots__ = ("_classes", "_file", "messages", "text")
    kind: Final = "PROTOBUF"

    def __init__(self, text: str) -> None:
        """Raises `InvalidSchema`."""
        self.text = text
        self._file = descriptor_of(text, _FILE)
        pool = DescriptorPool()
        known: set[str] = set()
        for name in self._file.dependency:
            _add_import(pool, name, known)
        try:
            pool.Add(self._file)
            found = pool.FindFileByName(_FILE)
        except (TypeError, KeyError, ValueError) as error:
            raise InvalidSchema(shortened(f"it is no .proto file: {error}")) from error
        # The order of the file, which the indexes of Confluent's wire format follow.
        self.messages: list[Descriptor] = [found.message_types_by_name[each.name] for each in self._file.message_type]
        if not self.messages:
            raise InvalidSchema("a .proto file without a message")
        self._classes: dict[str, Any] = {}

    @property
    def canonical(self) -> bytes:
        """Equal for files that differ only in comments, white space and options that are not read."""
        return self._file.SerializeToString(deterministic=True)

    def check(self, payload: bytes) -> None:
        """Check a payload, which is the first message of the file. Raises `InvalidPayload`."""
        self._check(self.messages[0], payload)

    def check_framed(self, payload: bytes) -> None:
        """Check what follows a schema id: the indexes of a message, and the message. Raises `InvalidPayload`."""
        descriptor, start = self._indexed(payload)
        self._check(descriptor, payload[start:])

    def _check(self, descriptor: Descriptor, payload: bytes) -> None:
        if len(payload) > MAX_PAYLOAD:
            raise InvalidPayload(f"it has more than {MAX_PAYLOAD} bytes, and larger payloads are not checked")
        message_class = self._classes.get(descriptor.full_name)
        if message_class is None:
            message_class = self._classes[descriptor.full_name] = GetMessageClass(descriptor)
        try:
            message: Any = message_class.FromString(payload)
        except DecodeError as error:
            raise InvalidPayload(shortened(f"it is no {descriptor.full_name}: {error}")) from error
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise InvalidPayload(shortened(f"required fields of {descriptor.full_name} are missing: {missing}"))
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            raise InvalidPayload(f"it has fields that {descriptor.full_name} does not have")

    def _indexed(self, payload: bytes) -> tuple[Descriptor, int]:
        """The message that the indexes in front of a payload name, and where they end. Raises `InvalidPayload`."""
        count, at = _varint(payload, 0)
        indexes = [0]
        if count:
            if not 0 < count <= _MAX_INDEXES:
                raise InvalidPayload("the indexes of its message are not valid")
            indexes = []
            for _ in range(count):
                index, at = _varint(payload, at)
                indexes.append(index)
        messages = self.messages
        descriptor: Descriptor | None = None
        for index in indexes:
            if not 0 <= index < len(messages):
                raise InvalidPayload("there is no message with its indexes")
            descriptor = messages[index]
            messages = list(descriptor.nested_types)
        assert descriptor is not None
        return descriptor, at


def _add_import(pool: DescriptorPool, name: str, known: set[str]) -> None:
    """Add a file of Google's well-known types, and those that it imports."""
    if name in known:
        return
    known.add(name)
    module = _IMPORTED.get(name)
    if module is None:
        raise InvalidSchema(
            shortened(f"import {name!r}: only Google's well-known types (google/protobuf/) are known here")
        )
    file = import_module(module).DESCRIPTOR
    for each in file.dependencies:
        _add_import(pool, each.name, known)
    pool.AddSerializedFile(file.serialized_pb)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag encoding, and where it ends. Raises `InvalidPayload`."""
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise InvalidPayload("the indexes of its message are not valid")
