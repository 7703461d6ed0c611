from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    PUB: _ClassVar[Action]
    SUB: _ClassVar[Action]
    CREATE: _ClassVar[Action]
    UPDATE: _ClassVar[Action]
    DELETE: _ClassVar[Action]
    LIST: _ClassVar[Action]
    GET: _ClassVar[Action]

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    CLUSTER: _ClassVar[Kind]
    TOPIC: _ClassVar[Kind]
    GROUP: _ClassVar[Kind]
    SESSION: _ClassVar[Kind]
ACTION_UNSPECIFIED: Action
PUB: Action
SUB: Action
CREATE: Action
UPDATE: Action
DELETE: Action
LIST: Action
GET: Action
KIND_UNSPECIFIED: Kind
CLUSTER: Kind
TOPIC: Kind
GROUP: Kind
SESSION: Kind
REQUIRES_FIELD_NUMBER: _ClassVar[int]
requires: _descriptor.FieldDescriptor
TAKES_LONG_FIELD_NUMBER: _ClassVar[int]
takes_long: _descriptor.FieldDescriptor
IS_TRAFFIC_FIELD_NUMBER: _ClassVar[int]
is_traffic: _descriptor.FieldDescriptor
OF_USERS_FIELD_NUMBER: _ClassVar[int]
of_users: _descriptor.FieldDescriptor

class Right(_message.Message):
    __slots__ = ("action", "kind", "field", "name", "below", "each", "or_owner")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    EACH_FIELD_NUMBER: _ClassVar[int]
    OR_OWNER_FIELD_NUMBER: _ClassVar[int]
    action: Action
    kind: Kind
    field: str
    name: str
    below: bool
    each: bool
    or_owner: bool
    def __init__(self, action: _Optional[_Union[Action, str]] = ..., kind: _Optional[_Union[Kind, str]] = ..., field: _Optional[str] = ..., name: _Optional[str] = ..., below: _Optional[bool] = ..., each: _Optional[bool] = ..., or_owner: _Optional[bool] = ...) -> None: ...
