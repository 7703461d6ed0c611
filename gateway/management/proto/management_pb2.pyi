from gateway.management.proto import options_pb2 as _options_pb2
from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BY_NAME: _ClassVar[GroupOrder]
    BY_LAG: _ClassVar[GroupOrder]
    BY_HANDLING_TIME: _ClassVar[GroupOrder]
BY_NAME: GroupOrder
BY_LAG: GroupOrder
BY_HANDLING_TIME: GroupOrder

class ListTopicsRequest(_message.Message):
    __slots__ = ("above", "after", "limit", "with_rates")
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_RATES_FIELD_NUMBER: _ClassVar[int]
    above: str
    after: str
    limit: int
    with_rates: bool
    def __init__(self, above: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., with_rates: _Optional[bool] = ...) -> None: ...

class ListTopicsReply(_message.Message):
    __slots__ = ("topics", "after")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicNode]
    after: str
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicNode, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class TopicNode(_message.Message):
    __slots__ = ("name", "path", "is_topic", "has_children", "messages", "last_ms", "rate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    IS_TOPIC_FIELD_NUMBER: _ClassVar[int]
    HAS_CHILDREN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    is_topic: bool
    has_children: bool
    messages: int
    last_ms: int
    rate: float
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., is_topic: _Optional[bool] = ..., has_children: _Optional[bool] = ..., messages: _Optional[int] = ..., last_ms: _Optional[int] = ..., rate: _Optional[float] = ...) -> None: ...

class SearchTopicsRequest(_message.Message):
    __slots__ = ("prefix", "after", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    after: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class SearchTopicsReply(_message.Message):
    __slots__ = ("topics", "after")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    after: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., after: _Optional[str] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("topic", "begin", "end", "last", "retained", "parent", "partitions", "retained_from_ms", "retained_s", "rate", "bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_S_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    begin: int
    end: int
    last: Message
    retained: Message
    parent: str
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    retained_from_ms: int
    retained_s: float
    rate: float
    bytes: int
    def __init__(self, topic: _Optional[str] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., last: _Optional[_Union[Message, _Mapping]] = ..., retained: _Optional[_Union[Message, _Mapping]] = ..., parent: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., retained_from_ms: _Optional[int] = ..., retained_s: _Optional[float] = ..., rate: _Optional[float] = ..., bytes: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "begin", "end")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    partition: int
    begin: int
    end: int
    def __init__(self, partition: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("position", "time_ms", "topic", "publisher", "qos", "retain", "half", "due_ms", "content_type", "response_topic", "correlation_data", "message_expiry_s", "properties", "payload_size", "payload", "text", "is_json", "offset", "cbor")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    QOS_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_DATA_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_EXPIRY_S_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_JSON_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CBOR_FIELD_NUMBER: _ClassVar[int]
    position: int
    time_ms: int
    topic: str
    publisher: str
    qos: int
    retain: bool
    half: bool
    due_ms: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    message_expiry_s: int
    properties: _containers.RepeatedCompositeFieldContainer[UserProperty]
    payload_size: int
    payload: bytes
    text: str
    is_json: bool
    offset: int
    cbor: str
    def __init__(self, position: _Optional[int] = ..., time_ms: _Optional[int] = ..., topic: _Optional[str] = ..., publisher: _Optional[str] = ..., qos: _Optional[int] = ..., retain: _Optional[bool] = ..., half: _Optional[bool] = ..., due_ms: _Optional[int] = ..., content_type: _Optional[str] = ..., response_topic: _Optional[str] = ..., correlation_data: _Optional[bytes] = ..., message_expiry_s: _Optional[int] = ..., properties: _Optional[_Iterable[_Union[UserProperty, _Mapping]]] = ..., payload_size: _Optional[int] = ..., payload: _Optional[bytes] = ..., text: _Optional[str] = ..., is_json: _Optional[bool] = ..., offset: _Optional[int] = ..., cbor: _Optional[str] = ...) -> None: ...

class UserProperty(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class BrowseTopicRequest(_message.Message):
    __slots__ = ("topic", "offset", "time_ms", "limit", "max_payload")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    offset: int
    time_ms: int
    limit: int
    max_payload: int
    def __init__(self, topic: _Optional[str] = ..., offset: _Optional[int] = ..., time_ms: _Optional[int] = ..., limit: _Optional[int] = ..., max_payload: _Optional[int] = ...) -> None: ...

class BrowsePartitionRequest(_message.Message):
    __slots__ = ("parent", "partition", "offset", "time_ms", "limit", "max_payload")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    parent: str
    partition: int
    offset: int
    time_ms: int
    limit: int
    max_payload: int
    def __init__(self, parent: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., time_ms: _Optional[int] = ..., limit: _Optional[int] = ..., max_payload: _Optional[int] = ...) -> None: ...

class BrowseReply(_message.Message):
    __slots__ = ("messages", "begin", "end", "next")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    begin: int
    end: int
    next: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class PublishMessageRequest(_message.Message):
    __slots__ = ("topic", "payload", "text", "qos", "retain", "content_type", "properties")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    QOS_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    payload: bytes
    text: str
    qos: int
    retain: bool
    content_type: str
    properties: _containers.RepeatedCompositeFieldContainer[UserProperty]
    def __init__(self, topic: _Optional[str] = ..., payload: _Optional[bytes] = ..., text: _Optional[str] = ..., qos: _Optional[int] = ..., retain: _Optional[bool] = ..., content_type: _Optional[str] = ..., properties: _Optional[_Iterable[_Union[UserProperty, _Mapping]]] = ...) -> None: ...

class PublishMessageReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class PublishMessagesRequest(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[PublishMessageRequest]
    def __init__(self, messages: _Optional[_Iterable[_Union[PublishMessageRequest, _Mapping]]] = ...) -> None: ...

class PublishMessagesReply(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, positions: _Optional[_Iterable[int]] = ...) -> None: ...

class ReceiveMessagesRequest(_message.Message):
    __slots__ = ("group", "parent", "limit", "wait_ms", "lease_ms", "from_earliest", "max_deliveries", "member")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    FROM_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    limit: int
    wait_ms: int
    lease_ms: int
    from_earliest: bool
    max_deliveries: int
    member: str
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., limit: _Optional[int] = ..., wait_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., from_earliest: _Optional[bool] = ..., max_deliveries: _Optional[int] = ..., member: _Optional[str] = ...) -> None: ...

class ReceiveMessagesReply(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ReceivedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ReceivedMessage, _Mapping]]] = ...) -> None: ...

class ReceivedMessage(_message.Message):
    __slots__ = ("receipt", "deliveries", "message")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    deliveries: int
    message: Message
    def __init__(self, receipt: _Optional[str] = ..., deliveries: _Optional[int] = ..., message: _Optional[_Union[Message, _Mapping]] = ...) -> None: ...

class AcknowledgeMessagesRequest(_message.Message):
    __slots__ = ("group", "parent", "done", "failed", "unhandled", "max_deliveries", "member")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    UNHANDLED_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    done: _containers.RepeatedScalarFieldContainer[str]
    failed: _containers.RepeatedCompositeFieldContainer[FailedMessage]
    unhandled: _containers.RepeatedScalarFieldContainer[str]
    max_deliveries: int
    member: str
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., done: _Optional[_Iterable[str]] = ..., failed: _Optional[_Iterable[_Union[FailedMessage, _Mapping]]] = ..., unhandled: _Optional[_Iterable[str]] = ..., max_deliveries: _Optional[int] = ..., member: _Optional[str] = ...) -> None: ...

class FailedMessage(_message.Message):
    __slots__ = ("receipt", "delay_ms", "error")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    receipt: str
    delay_ms: int
    error: str
    def __init__(self, receipt: _Optional[str] = ..., delay_ms: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class AcknowledgeMessagesReply(_message.Message):
    __slots__ = ("expired",)
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    expired: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, expired: _Optional[_Iterable[str]] = ...) -> None: ...

class FindMessagesRequest(_message.Message):
    __slots__ = ("parent", "key", "after", "limit", "max_payload")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    parent: str
    key: str
    after: int
    limit: int
    max_payload: int
    def __init__(self, parent: _Optional[str] = ..., key: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., max_payload: _Optional[int] = ...) -> None: ...

class FindMessagesReply(_message.Message):
    __slots__ = ("messages", "after")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    after: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., after: _Optional[int] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("position", "max_payload")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    position: int
    max_payload: int
    def __init__(self, position: _Optional[int] = ..., max_payload: _Optional[int] = ...) -> None: ...

class TraceMessageRequest(_message.Message):
    __slots__ = ("position", "after")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    position: int
    after: bytes
    def __init__(self, position: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class TraceMessageReply(_message.Message):
    __slots__ = ("events", "after", "read_to", "end")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    READ_TO_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    after: bytes
    read_to: int
    end: int
    def __init__(self, events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., after: _Optional[bytes] = ..., read_to: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("kind", "time_ms", "position", "who", "queue", "offset", "until_ms", "member", "reason", "error", "machine")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    time_ms: int
    position: int
    who: str
    queue: str
    offset: int
    until_ms: int
    member: str
    reason: str
    error: str
    machine: Machine
    def __init__(self, kind: _Optional[str] = ..., time_ms: _Optional[int] = ..., position: _Optional[int] = ..., who: _Optional[str] = ..., queue: _Optional[str] = ..., offset: _Optional[int] = ..., until_ms: _Optional[int] = ..., member: _Optional[str] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("kind", "address", "user", "language", "version", "gateway")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    address: str
    user: str
    language: str
    version: str
    gateway: str
    def __init__(self, kind: _Optional[str] = ..., address: _Optional[str] = ..., user: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., gateway: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("after", "limit", "prefix", "order")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    prefix: str
    order: GroupOrder
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., prefix: _Optional[str] = ..., order: _Optional[_Union[GroupOrder, str]] = ...) -> None: ...

class ListGroupsReply(_message.Message):
    __slots__ = ("groups", "after", "is_cut")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    after: str
    is_cut: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ..., after: _Optional[str] = ..., is_cut: _Optional[bool] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "queues", "lag", "unfinished", "dead_letters", "paused", "lag_seconds", "handling_ms", "delivered_rate", "acknowledged_rate")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HANDLING_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_RATE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_RATE_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: int
    lag: int
    unfinished: int
    dead_letters: int
    paused: bool
    lag_seconds: float
    handling_ms: float
    delivered_rate: float
    acknowledged_rate: float
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[int] = ..., lag: _Optional[int] = ..., unfinished: _Optional[int] = ..., dead_letters: _Optional[int] = ..., paused: _Optional[bool] = ..., lag_seconds: _Optional[float] = ..., handling_ms: _Optional[float] = ..., delivered_rate: _Optional[float] = ..., acknowledged_rate: _Optional[float] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("group", "creator", "queues", "queue_count", "dead_letters", "pause", "members", "figures", "attempts", "unknown")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREATOR_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    group: str
    creator: str
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    queue_count: int
    dead_letters: int
    pause: GroupPause
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    figures: GroupFigures
    attempts: _containers.RepeatedCompositeFieldContainer[AttemptCount]
    unknown: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., creator: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., queue_count: _Optional[int] = ..., dead_letters: _Optional[int] = ..., pause: _Optional[_Union[GroupPause, _Mapping]] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., figures: _Optional[_Union[GroupFigures, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[AttemptCount, _Mapping]]] = ..., unknown: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member", "service", "machine", "held", "received", "acknowledged", "failed", "handling_ms", "since_ms")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HANDLING_MS_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    member: str
    service: str
    machine: Machine
    held: int
    received: int
    acknowledged: int
    failed: int
    handling_ms: float
    since_ms: int
    def __init__(self, member: _Optional[str] = ..., service: _Optional[str] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ..., held: _Optional[int] = ..., received: _Optional[int] = ..., acknowledged: _Optional[int] = ..., failed: _Optional[int] = ..., handling_ms: _Optional[float] = ..., since_ms: _Optional[int] = ...) -> None: ...

class GroupFigures(_message.Message):
    __slots__ = ("deliveries", "redeliveries", "acknowledged", "dead_lettered", "delivered_rate", "acknowledged_rate", "handling_ms", "mean_handling_ms")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    REDELIVERIES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_RATE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_RATE_FIELD_NUMBER: _ClassVar[int]
    HANDLING_MS_FIELD_NUMBER: _ClassVar[int]
    MEAN_HANDLING_MS_FIELD_NUMBER: _ClassVar[int]
    deliveries: int
    redeliveries: int
    acknowledged: int
    dead_lettered: int
    delivered_rate: float
    acknowledged_rate: float
    handling_ms: float
    mean_handling_ms: float
    def __init__(self, deliveries: _Optional[int] = ..., redeliveries: _Optional[int] = ..., acknowledged: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., delivered_rate: _Optional[float] = ..., acknowledged_rate: _Optional[float] = ..., handling_ms: _Optional[float] = ..., mean_handling_ms: _Optional[float] = ...) -> None: ...

class AttemptCount(_message.Message):
    __slots__ = ("deliveries", "messages")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    deliveries: int
    messages: int
    def __init__(self, deliveries: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class GroupPause(_message.Message):
    __slots__ = ("since_ms", "by")
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    by: str
    def __init__(self, since_ms: _Optional[int] = ..., by: _Optional[str] = ...) -> None: ...

class PauseGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ResumeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("queue", "floor", "next", "unfinished", "lag", "lag_seconds")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    floor: int
    next: int
    unfinished: int
    lag: int
    lag_seconds: float
    def __init__(self, queue: _Optional[str] = ..., floor: _Optional[int] = ..., next: _Optional[int] = ..., unfinished: _Optional[int] = ..., lag: _Optional[int] = ..., lag_seconds: _Optional[float] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("group", "earliest", "latest", "time_ms", "offset", "queue", "parent")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    group: str
    earliest: bool
    latest: bool
    time_ms: int
    offset: int
    queue: str
    parent: str
    def __init__(self, group: _Optional[str] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., time_ms: _Optional[int] = ..., offset: _Optional[int] = ..., queue: _Optional[str] = ..., parent: _Optional[str] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("group", "after", "limit", "max_payload")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    group: str
    after: int
    limit: int
    max_payload: int
    def __init__(self, group: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., max_payload: _Optional[int] = ...) -> None: ...

class ListDeadLettersReply(_message.Message):
    __slots__ = ("dead_letters", "after")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    dead_letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    after: int
    def __init__(self, dead_letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., after: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("offset", "reason", "error", "deliveries", "queue", "queue_offset", "first_ms", "last_ms", "message")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    reason: str
    error: str
    deliveries: int
    queue: str
    queue_offset: int
    first_ms: int
    last_ms: int
    message: Message
    def __init__(self, offset: _Optional[int] = ..., reason: _Optional[str] = ..., error: _Optional[str] = ..., deliveries: _Optional[int] = ..., queue: _Optional[str] = ..., queue_offset: _Optional[int] = ..., first_ms: _Optional[int] = ..., last_ms: _Optional[int] = ..., message: _Optional[_Union[Message, _Mapping]] = ...) -> None: ...

class RequeueDeadLettersRequest(_message.Message):
    __slots__ = ("group", "offsets", "all", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    all: bool
    topic: str
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., all: _Optional[bool] = ..., topic: _Optional[str] = ...) -> None: ...

class RequeueDeadLettersReply(_message.Message):
    __slots__ = ("requeued", "missing", "leased")
    REQUEUED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    requeued: int
    missing: _containers.RepeatedScalarFieldContainer[int]
    leased: int
    def __init__(self, requeued: _Optional[int] = ..., missing: _Optional[_Iterable[int]] = ..., leased: _Optional[int] = ...) -> None: ...

class DeleteDeadLettersRequest(_message.Message):
    __slots__ = ("group", "offsets", "all")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    all: bool
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., all: _Optional[bool] = ...) -> None: ...

class DeleteDeadLettersReply(_message.Message):
    __slots__ = ("deleted", "missing", "leased")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    missing: _containers.RepeatedScalarFieldContainer[int]
    leased: int
    def __init__(self, deleted: _Optional[int] = ..., missing: _Optional[_Iterable[int]] = ..., leased: _Optional[int] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("after", "limit", "connected", "prefix", "user")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    connected: bool
    prefix: str
    user: str
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., connected: _Optional[bool] = ..., prefix: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class ListClientsReply(_message.Message):
    __slots__ = ("clients", "after")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    after: str
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class Client(_message.Message):
    __slots__ = ("client_id", "user", "connected", "durable", "expiry_interval_s", "closed_at_ms", "subscription_count", "subscriptions", "backlog", "in_flight", "will", "dropped", "gateway", "address", "version", "keep_alive_s", "clean_start", "connected_ms", "queued_bytes", "paced", "unknown")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    CLOSED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    WILL_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_S_FIELD_NUMBER: _ClassVar[int]
    CLEAN_START_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PACED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    user: str
    connected: bool
    durable: bool
    expiry_interval_s: int
    closed_at_ms: int
    subscription_count: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    backlog: int
    in_flight: int
    will: Will
    dropped: Dropped
    gateway: str
    address: str
    version: str
    keep_alive_s: int
    clean_start: bool
    connected_ms: int
    queued_bytes: int
    paced: bool
    unknown: str
    def __init__(self, client_id: _Optional[str] = ..., user: _Optional[str] = ..., connected: _Optional[bool] = ..., durable: _Optional[bool] = ..., expiry_interval_s: _Optional[int] = ..., closed_at_ms: _Optional[int] = ..., subscription_count: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., backlog: _Optional[int] = ..., in_flight: _Optional[int] = ..., will: _Optional[_Union[Will, _Mapping]] = ..., dropped: _Optional[_Union[Dropped, _Mapping]] = ..., gateway: _Optional[str] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., keep_alive_s: _Optional[int] = ..., clean_start: _Optional[bool] = ..., connected_ms: _Optional[int] = ..., queued_bytes: _Optional[int] = ..., paced: _Optional[bool] = ..., unknown: _Optional[str] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("filter", "qos", "backlog")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    QOS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    filter: str
    qos: int
    backlog: int
    def __init__(self, filter: _Optional[str] = ..., qos: _Optional[int] = ..., backlog: _Optional[int] = ...) -> None: ...

class Will(_message.Message):
    __slots__ = ("topic", "due_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    due_ms: int
    def __init__(self, topic: _Optional[str] = ..., due_ms: _Optional[int] = ...) -> None: ...

class BeginTraceRequest(_message.Message):
    __slots__ = ("client_id", "seconds")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    seconds: int
    def __init__(self, client_id: _Optional[str] = ..., seconds: _Optional[int] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("trace", "until_ms")
    TRACE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    trace: str
    until_ms: int
    def __init__(self, trace: _Optional[str] = ..., until_ms: _Optional[int] = ...) -> None: ...

class ReadTraceRequest(_message.Message):
    __slots__ = ("client_id", "trace")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    trace: str
    def __init__(self, client_id: _Optional[str] = ..., trace: _Optional[str] = ...) -> None: ...

class ReadTraceReply(_message.Message):
    __slots__ = ("packets", "dropped", "over")
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    packets: _containers.RepeatedCompositeFieldContainer[TracedPacket]
    dropped: int
    over: bool
    def __init__(self, packets: _Optional[_Iterable[_Union[TracedPacket, _Mapping]]] = ..., dropped: _Optional[int] = ..., over: _Optional[bool] = ...) -> None: ...

class TracedPacket(_message.Message):
    __slots__ = ("time_ms", "sender", "text", "gateway")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    sender: str
    text: str
    gateway: str
    def __init__(self, time_ms: _Optional[int] = ..., sender: _Optional[str] = ..., text: _Optional[str] = ..., gateway: _Optional[str] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("expired", "reclaimed", "oversized", "qos0_congested", "qos0_repeated")
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    RECLAIMED_FIELD_NUMBER: _ClassVar[int]
    OVERSIZED_FIELD_NUMBER: _ClassVar[int]
    QOS0_CONGESTED_FIELD_NUMBER: _ClassVar[int]
    QOS0_REPEATED_FIELD_NUMBER: _ClassVar[int]
    expired: int
    reclaimed: int
    oversized: int
    qos0_congested: int
    qos0_repeated: int
    def __init__(self, expired: _Optional[int] = ..., reclaimed: _Optional[int] = ..., oversized: _Optional[int] = ..., qos0_congested: _Optional[int] = ..., qos0_repeated: _Optional[int] = ...) -> None: ...

class GetClientRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class KickClientRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class KickClientReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class EndSessionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListServicesRequest(_message.Message):
    __slots__ = ("after", "limit", "group", "user", "name")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    group: str
    user: str
    name: str
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ..., group: _Optional[str] = ..., user: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListServicesReply(_message.Message):
    __slots__ = ("services", "after", "unknown")
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[ServiceClient]
    after: str
    unknown: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, services: _Optional[_Iterable[_Union[ServiceClient, _Mapping]]] = ..., after: _Optional[str] = ..., unknown: _Optional[_Iterable[str]] = ...) -> None: ...

class ServiceClient(_message.Message):
    __slots__ = ("id", "name", "machine", "since_ms", "last_ms", "under_way", "calls", "sent", "received", "sent_rate", "received_rate", "groups")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_RATE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_RATE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    machine: Machine
    since_ms: int
    last_ms: int
    under_way: int
    calls: _containers.RepeatedCompositeFieldContainer[CallCount]
    sent: int
    received: int
    sent_rate: float
    received_rate: float
    groups: _containers.RepeatedCompositeFieldContainer[ServiceGroup]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., machine: _Optional[_Union[Machine, _Mapping]] = ..., since_ms: _Optional[int] = ..., last_ms: _Optional[int] = ..., under_way: _Optional[int] = ..., calls: _Optional[_Iterable[_Union[CallCount, _Mapping]]] = ..., sent: _Optional[int] = ..., received: _Optional[int] = ..., sent_rate: _Optional[float] = ..., received_rate: _Optional[float] = ..., groups: _Optional[_Iterable[_Union[ServiceGroup, _Mapping]]] = ...) -> None: ...

class CallCount(_message.Message):
    __slots__ = ("method", "count")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    method: str
    count: int
    def __init__(self, method: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ServiceGroup(_message.Message):
    __slots__ = ("group", "member", "held", "received", "acknowledged", "failed", "handling_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    HANDLING_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    held: int
    received: int
    acknowledged: int
    failed: int
    handling_ms: float
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., held: _Optional[int] = ..., received: _Optional[int] = ..., acknowledged: _Optional[int] = ..., failed: _Optional[int] = ..., handling_ms: _Optional[float] = ...) -> None: ...

class GetServiceRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListTimersRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: bytes
    limit: int
    def __init__(self, after: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: bytes
    limit: int
    def __init__(self, after: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class ListHeldReply(_message.Message):
    __slots__ = ("messages", "after")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[HeldMessage]
    after: bytes
    def __init__(self, messages: _Optional[_Iterable[_Union[HeldMessage, _Mapping]]] = ..., after: _Optional[bytes] = ...) -> None: ...

class HeldMessage(_message.Message):
    __slots__ = ("position", "topic", "publisher", "due_ms", "checks")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    position: int
    topic: str
    publisher: str
    due_ms: int
    checks: int
    def __init__(self, position: _Optional[int] = ..., topic: _Optional[str] = ..., publisher: _Optional[str] = ..., due_ms: _Optional[int] = ..., checks: _Optional[int] = ...) -> None: ...

class RecallTimersRequest(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, positions: _Optional[_Iterable[int]] = ...) -> None: ...

class RecallTimersReply(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, missing: _Optional[_Iterable[int]] = ...) -> None: ...

class EndTransactionsRequest(_message.Message):
    __slots__ = ("positions", "commit")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    commit: bool
    def __init__(self, positions: _Optional[_Iterable[int]] = ..., commit: _Optional[bool] = ...) -> None: ...

class EndTransactionsReply(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, missing: _Optional[_Iterable[int]] = ...) -> None: ...

class GetStoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Store(_message.Message):
    __slots__ = ("failed", "begin", "end", "checkpoint", "log_bytes", "view_bytes", "free_bytes", "is_disk_low", "pending_bytes", "sessions", "retained", "held", "max_held", "segments", "retention", "damage", "damage_met")
    FAILED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    VIEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_DISK_LOW_FIELD_NUMBER: _ClassVar[int]
    PENDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MAX_HELD_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_MET_FIELD_NUMBER: _ClassVar[int]
    failed: bool
    begin: int
    end: int
    checkpoint: int
    log_bytes: int
    view_bytes: int
    free_bytes: int
    is_disk_low: bool
    pending_bytes: int
    sessions: int
    retained: int
    held: int
    max_held: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    retention: Retention
    damage: _containers.RepeatedCompositeFieldContainer[Damage]
    damage_met: int
    def __init__(self, failed: _Optional[bool] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., checkpoint: _Optional[int] = ..., log_bytes: _Optional[int] = ..., view_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., is_disk_low: _Optional[bool] = ..., pending_bytes: _Optional[int] = ..., sessions: _Optional[int] = ..., retained: _Optional[int] = ..., held: _Optional[int] = ..., max_held: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., damage: _Optional[_Iterable[_Union[Damage, _Mapping]]] = ..., damage_met: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("position", "bytes")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    position: int
    bytes: int
    def __init__(self, position: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("age_s", "parents", "bytes", "free_bytes", "keep_bytes", "hours")
    class ParentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEEP_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    parents: _containers.ScalarMap[str, float]
    bytes: int
    free_bytes: int
    keep_bytes: int
    hours: str
    def __init__(self, age_s: _Optional[float] = ..., parents: _Optional[_Mapping[str, float]] = ..., bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., keep_bytes: _Optional[int] = ..., hours: _Optional[str] = ...) -> None: ...

class Damage(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class GetFiguresRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Figures(_message.Message):
    __slots__ = ("time_ms", "connections", "messages_received", "messages_sent", "messages_stored", "bytes_received", "bytes_sent", "messages_refused", "messages_dropped", "logins_failed", "protocol_errors", "tier", "limits_reached")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_SENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_STORED_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    LOGINS_FAILED_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    LIMITS_REACHED_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    connections: int
    messages_received: int
    messages_sent: int
    messages_stored: int
    bytes_received: int
    bytes_sent: int
    messages_refused: int
    messages_dropped: int
    logins_failed: int
    protocol_errors: int
    tier: Tier
    limits_reached: int
    def __init__(self, time_ms: _Optional[int] = ..., connections: _Optional[int] = ..., messages_received: _Optional[int] = ..., messages_sent: _Optional[int] = ..., messages_stored: _Optional[int] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., messages_refused: _Optional[int] = ..., messages_dropped: _Optional[int] = ..., logins_failed: _Optional[int] = ..., protocol_errors: _Optional[int] = ..., tier: _Optional[_Union[Tier, _Mapping]] = ..., limits_reached: _Optional[int] = ...) -> None: ...

class Tier(_message.Message):
    __slots__ = ("segments", "waiting_bytes", "error")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    segments: int
    waiting_bytes: int
    error: str
    def __init__(self, segments: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class StageStoreRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class StageStoreReply(_message.Message):
    __slots__ = ("begin", "position", "time_ms")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    begin: int
    position: int
    time_ms: int
    def __init__(self, begin: _Optional[int] = ..., position: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class GetConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class ReloadConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadConfigurationReply(_message.Message):
    __slots__ = ("changed", "needs_restart")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    NEEDS_RESTART_FIELD_NUMBER: _ClassVar[int]
    changed: _containers.RepeatedScalarFieldContainer[str]
    needs_restart: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changed: _Optional[_Iterable[str]] = ..., needs_restart: _Optional[_Iterable[str]] = ...) -> None: ...

class User(_message.Message):
    __slots__ = ("name", "iterations", "roles", "disabled", "super_user")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    SUPER_USER_FIELD_NUMBER: _ClassVar[int]
    name: str
    iterations: int
    roles: _containers.RepeatedScalarFieldContainer[str]
    disabled: bool
    super_user: bool
    def __init__(self, name: _Optional[str] = ..., iterations: _Optional[int] = ..., roles: _Optional[_Iterable[str]] = ..., disabled: _Optional[bool] = ..., super_user: _Optional[bool] = ...) -> None: ...

class UpdateUserRequest(_message.Message):
    __slots__ = ("name", "roles", "disabled", "super_user")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    SUPER_USER_FIELD_NUMBER: _ClassVar[int]
    name: str
    roles: RoleNames
    disabled: bool
    super_user: bool
    def __init__(self, name: _Optional[str] = ..., roles: _Optional[_Union[RoleNames, _Mapping]] = ..., disabled: _Optional[bool] = ..., super_user: _Optional[bool] = ...) -> None: ...

class RoleNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("name", "rules", "inherits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    INHERITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    rules: _containers.RepeatedScalarFieldContainer[str]
    inherits: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., rules: _Optional[_Iterable[str]] = ..., inherits: _Optional[_Iterable[str]] = ...) -> None: ...

class ListRolesRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListRolesReply(_message.Message):
    __slots__ = ("roles", "after")
    ROLES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedCompositeFieldContainer[Role]
    after: str
    def __init__(self, roles: _Optional[_Iterable[_Union[Role, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class DeleteRoleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteRoleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListUsersReply(_message.Message):
    __slots__ = ("users", "after")
    USERS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[User]
    after: str
    def __init__(self, users: _Optional[_Iterable[_Union[User, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class ScramKeys(_message.Message):
    __slots__ = ("iterations", "salt", "stored_key", "server_key")
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    def __init__(self, iterations: _Optional[int] = ..., salt: _Optional[bytes] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class CreateUserRequest(_message.Message):
    __slots__ = ("name", "password", "keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    password: str
    keys: ScramKeys
    def __init__(self, name: _Optional[str] = ..., password: _Optional[str] = ..., keys: _Optional[_Union[ScramKeys, _Mapping]] = ...) -> None: ...

class ChangePasswordRequest(_message.Message):
    __slots__ = ("name", "password", "keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    password: str
    keys: ScramKeys
    def __init__(self, name: _Optional[str] = ..., password: _Optional[str] = ..., keys: _Optional[_Union[ScramKeys, _Mapping]] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteUserReply(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    def __init__(self, sessions: _Optional[int] = ...) -> None: ...

class ListRulesRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListRulesReply(_message.Message):
    __slots__ = ("rules", "after")
    RULES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[UserRules]
    after: str
    def __init__(self, rules: _Optional[_Iterable[_Union[UserRules, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class UserRules(_message.Message):
    __slots__ = ("user", "rules")
    USER_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    user: str
    rules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, user: _Optional[str] = ..., rules: _Optional[_Iterable[str]] = ...) -> None: ...

class SetRulesRequest(_message.Message):
    __slots__ = ("user", "rules")
    USER_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    user: str
    rules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, user: _Optional[str] = ..., rules: _Optional[_Iterable[str]] = ...) -> None: ...

class SetRulesReply(_message.Message):
    __slots__ = ("is_user",)
    IS_USER_FIELD_NUMBER: _ClassVar[int]
    is_user: bool
    def __init__(self, is_user: _Optional[bool] = ...) -> None: ...

class CheckRulesRequest(_message.Message):
    __slots__ = ("user", "client_id", "action", "resource", "by_default", "source")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    BY_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    action: str
    resource: str
    by_default: bool
    source: str
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ..., by_default: _Optional[bool] = ..., source: _Optional[str] = ...) -> None: ...

class CheckRulesReply(_message.Message):
    __slots__ = ("allowed", "because", "is_user", "steps")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    IS_USER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    because: str
    is_user: bool
    steps: _containers.RepeatedCompositeFieldContainer[CheckedRule]
    def __init__(self, allowed: _Optional[bool] = ..., because: _Optional[str] = ..., is_user: _Optional[bool] = ..., steps: _Optional[_Iterable[_Union[CheckedRule, _Mapping]]] = ...) -> None: ...

class CheckedRule(_message.Message):
    __slots__ = ("rule", "outcome")
    RULE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    rule: str
    outcome: str
    def __init__(self, rule: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...

class TestLoginRequest(_message.Message):
    __slots__ = ("user", "password", "bearer", "client_id", "source")
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    BEARER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    user: str
    password: str
    bearer: bool
    client_id: str
    source: str
    def __init__(self, user: _Optional[str] = ..., password: _Optional[str] = ..., bearer: _Optional[bool] = ..., client_id: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class TestLoginReply(_message.Message):
    __slots__ = ("allowed", "because", "steps", "user", "roles", "rules", "super_user", "expires_ms")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    SUPER_USER_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    because: str
    steps: _containers.RepeatedCompositeFieldContainer[LoginStep]
    user: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    rules: _containers.RepeatedScalarFieldContainer[str]
    super_user: bool
    expires_ms: int
    def __init__(self, allowed: _Optional[bool] = ..., because: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[LoginStep, _Mapping]]] = ..., user: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., rules: _Optional[_Iterable[str]] = ..., super_user: _Optional[bool] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class LoginStep(_message.Message):
    __slots__ = ("authenticator", "outcome")
    AUTHENTICATOR_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    authenticator: str
    outcome: str
    def __init__(self, authenticator: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...

class Ban(_message.Message):
    __slots__ = ("target", "until_ms", "since_ms", "by", "reason")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    target: str
    until_ms: int
    since_ms: int
    by: str
    reason: str
    def __init__(self, target: _Optional[str] = ..., until_ms: _Optional[int] = ..., since_ms: _Optional[int] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ListBansRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListBansReply(_message.Message):
    __slots__ = ("bans", "after")
    BANS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    bans: _containers.RepeatedCompositeFieldContainer[Ban]
    after: str
    def __init__(self, bans: _Optional[_Iterable[_Union[Ban, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class SetBanRequest(_message.Message):
    __slots__ = ("target", "until_ms", "reason")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    target: str
    until_ms: int
    reason: str
    def __init__(self, target: _Optional[str] = ..., until_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class EndBanRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class EndBanReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestAccessRequest(_message.Message):
    __slots__ = ("actions", "resource", "reason")
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    actions: str
    resource: str
    reason: str
    def __init__(self, actions: _Optional[str] = ..., resource: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AccessRequest(_message.Message):
    __slots__ = ("number", "user", "rule", "reason", "since_ms", "until_ms", "state", "decided_ms", "by", "why", "may_decide")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    MAY_DECIDE_FIELD_NUMBER: _ClassVar[int]
    number: int
    user: str
    rule: str
    reason: str
    since_ms: int
    until_ms: int
    state: str
    decided_ms: int
    by: str
    why: str
    may_decide: bool
    def __init__(self, number: _Optional[int] = ..., user: _Optional[str] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., state: _Optional[str] = ..., decided_ms: _Optional[int] = ..., by: _Optional[str] = ..., why: _Optional[str] = ..., may_decide: _Optional[bool] = ...) -> None: ...

class ListAccessRequestsRequest(_message.Message):
    __slots__ = ("decided", "user", "after", "limit")
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    decided: bool
    user: str
    after: str
    limit: int
    def __init__(self, decided: _Optional[bool] = ..., user: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListAccessRequestsReply(_message.Message):
    __slots__ = ("requests", "after")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[AccessRequest]
    after: str
    def __init__(self, requests: _Optional[_Iterable[_Union[AccessRequest, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class ApproveAccessRequestRequest(_message.Message):
    __slots__ = ("number", "why")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    number: int
    why: str
    def __init__(self, number: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class DeclineAccessRequestRequest(_message.Message):
    __slots__ = ("number", "why")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    number: int
    why: str
    def __init__(self, number: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class EventRuleDefinition(_message.Message):
    __slots__ = ("topics", "pattern", "sql", "transform", "topic", "webhook", "enrich")
    class EnrichEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    ENRICH_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    sql: str
    transform: EventTransform
    topic: EventTopicTarget
    webhook: EventWebhookTarget
    enrich: _containers.ScalarMap[str, str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ..., sql: _Optional[str] = ..., transform: _Optional[_Union[EventTransform, _Mapping]] = ..., topic: _Optional[_Union[EventTopicTarget, _Mapping]] = ..., webhook: _Optional[_Union[EventWebhookTarget, _Mapping]] = ..., enrich: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EventTransform(_message.Message):
    __slots__ = ("path", "constant", "template", "content_type")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    path: str
    constant: str
    template: str
    content_type: str
    def __init__(self, path: _Optional[str] = ..., constant: _Optional[str] = ..., template: _Optional[str] = ..., content_type: _Optional[str] = ...) -> None: ...

class EventTopicTarget(_message.Message):
    __slots__ = ("topic", "qos", "retain")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QOS_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    qos: int
    retain: bool
    def __init__(self, topic: _Optional[str] = ..., qos: _Optional[int] = ..., retain: _Optional[bool] = ...) -> None: ...

class EventWebhookTarget(_message.Message):
    __slots__ = ("url", "mode", "batch", "in_flight", "rate", "timeout_s", "secret", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    URL_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    url: str
    mode: str
    batch: int
    in_flight: int
    rate: int
    timeout_s: int
    secret: str
    headers: _containers.ScalarMap[str, str]
    def __init__(self, url: _Optional[str] = ..., mode: _Optional[str] = ..., batch: _Optional[int] = ..., in_flight: _Optional[int] = ..., rate: _Optional[int] = ..., timeout_s: _Optional[int] = ..., secret: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EventRule(_message.Message):
    __slots__ = ("name", "definition", "by", "set_ms", "enabled", "trouble", "lag", "unfinished", "dead_letters", "figures")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SET_MS_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: EventRuleDefinition
    by: str
    set_ms: int
    enabled: bool
    trouble: str
    lag: int
    unfinished: int
    dead_letters: int
    figures: EventRuleFigures
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[_Union[EventRuleDefinition, _Mapping]] = ..., by: _Optional[str] = ..., set_ms: _Optional[int] = ..., enabled: _Optional[bool] = ..., trouble: _Optional[str] = ..., lag: _Optional[int] = ..., unfinished: _Optional[int] = ..., dead_letters: _Optional[int] = ..., figures: _Optional[_Union[EventRuleFigures, _Mapping]] = ...) -> None: ...

class EventRuleFigures(_message.Message):
    __slots__ = ("matched", "unmatched", "delivered", "failed", "refused", "error", "error_ms")
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MS_FIELD_NUMBER: _ClassVar[int]
    matched: int
    unmatched: int
    delivered: int
    failed: int
    refused: int
    error: str
    error_ms: int
    def __init__(self, matched: _Optional[int] = ..., unmatched: _Optional[int] = ..., delivered: _Optional[int] = ..., failed: _Optional[int] = ..., refused: _Optional[int] = ..., error: _Optional[str] = ..., error_ms: _Optional[int] = ...) -> None: ...

class ListEventRulesRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListEventRulesReply(_message.Message):
    __slots__ = ("rules", "after")
    RULES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[EventRule]
    after: str
    def __init__(self, rules: _Optional[_Iterable[_Union[EventRule, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class GetEventRuleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SetEventRuleRequest(_message.Message):
    __slots__ = ("name", "definition", "enabled", "now", "earliest", "time_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: EventRuleDefinition
    enabled: bool
    now: bool
    earliest: bool
    time_ms: int
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[_Union[EventRuleDefinition, _Mapping]] = ..., enabled: _Optional[bool] = ..., now: _Optional[bool] = ..., earliest: _Optional[bool] = ..., time_ms: _Optional[int] = ...) -> None: ...

class DeleteEventRuleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteEventRuleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseEventRuleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ResumeEventRuleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TestEventRuleRequest(_message.Message):
    __slots__ = ("name", "definition", "json", "position", "topic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    definition: EventRuleDefinition
    json: str
    position: int
    topic: str
    def __init__(self, name: _Optional[str] = ..., definition: _Optional[_Union[EventRuleDefinition, _Mapping]] = ..., json: _Optional[str] = ..., position: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class EventStep(_message.Message):
    __slots__ = ("path", "condition", "value", "holds")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    condition: str
    value: str
    holds: bool
    def __init__(self, path: _Optional[str] = ..., condition: _Optional[str] = ..., value: _Optional[str] = ..., holds: _Optional[bool] = ...) -> None: ...

class TestEventRuleReply(_message.Message):
    __slots__ = ("topic_matches", "steps", "matches", "error", "data", "content_type", "topic", "request", "event", "lookups")
    TOPIC_MATCHES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    topic_matches: bool
    steps: _containers.RepeatedCompositeFieldContainer[EventStep]
    matches: bool
    error: str
    data: str
    content_type: str
    topic: str
    request: EventRequest
    event: str
    lookups: _containers.RepeatedCompositeFieldContainer[EventLookup]
    def __init__(self, topic_matches: _Optional[bool] = ..., steps: _Optional[_Iterable[_Union[EventStep, _Mapping]]] = ..., matches: _Optional[bool] = ..., error: _Optional[str] = ..., data: _Optional[str] = ..., content_type: _Optional[str] = ..., topic: _Optional[str] = ..., request: _Optional[_Union[EventRequest, _Mapping]] = ..., event: _Optional[str] = ..., lookups: _Optional[_Iterable[_Union[EventLookup, _Mapping]]] = ...) -> None: ...

class EventLookup(_message.Message):
    __slots__ = ("name", "topic", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    value: str
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class EventRequest(_message.Message):
    __slots__ = ("url", "headers", "body")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    URL_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    url: str
    headers: _containers.ScalarMap[str, str]
    body: str
    def __init__(self, url: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., body: _Optional[str] = ...) -> None: ...

class PublishEventsRequest(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[PublishedEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[PublishedEvent, _Mapping]]] = ...) -> None: ...

class PublishedEvent(_message.Message):
    __slots__ = ("topic", "attributes", "data")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    attributes: _containers.ScalarMap[str, str]
    data: bytes
    def __init__(self, topic: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PublishEventsReply(_message.Message):
    __slots__ = ("positions", "repeated_events")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    repeated_events: int
    def __init__(self, positions: _Optional[_Iterable[int]] = ..., repeated_events: _Optional[int] = ...) -> None: ...

class FindEventsRequest(_message.Message):
    __slots__ = ("topic", "id", "source", "type", "since_ms", "until_ms", "after", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    source: str
    type: str
    since_ms: int
    until_ms: int
    after: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., source: _Optional[str] = ..., type: _Optional[str] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class FindEventsReply(_message.Message):
    __slots__ = ("events", "after")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[StoredEvent]
    after: str
    def __init__(self, events: _Optional[_Iterable[_Union[StoredEvent, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class StoredEvent(_message.Message):
    __slots__ = ("position", "time_ms", "topic", "event")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    position: int
    time_ms: int
    topic: str
    event: str
    def __init__(self, position: _Optional[int] = ..., time_ms: _Optional[int] = ..., topic: _Optional[str] = ..., event: _Optional[str] = ...) -> None: ...

class ConnectorPlugin(_message.Message):
    __slots__ = ("connector_class", "type", "version", "description", "settings")
    CONNECTOR_CLASS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    connector_class: str
    type: str
    version: str
    description: str
    settings: _containers.RepeatedCompositeFieldContainer[ConnectorSetting]
    def __init__(self, connector_class: _Optional[str] = ..., type: _Optional[str] = ..., version: _Optional[str] = ..., description: _Optional[str] = ..., settings: _Optional[_Iterable[_Union[ConnectorSetting, _Mapping]]] = ...) -> None: ...

class ConnectorSetting(_message.Message):
    __slots__ = ("name", "type", "required", "default", "importance", "documentation", "choices", "value", "errors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    required: bool
    default: str
    importance: str
    documentation: str
    choices: _containers.RepeatedScalarFieldContainer[str]
    value: str
    errors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., required: _Optional[bool] = ..., default: _Optional[str] = ..., importance: _Optional[str] = ..., documentation: _Optional[str] = ..., choices: _Optional[_Iterable[str]] = ..., value: _Optional[str] = ..., errors: _Optional[_Iterable[str]] = ...) -> None: ...

class ListConnectorPluginsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConnectorPluginsReply(_message.Message):
    __slots__ = ("plugins",)
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    plugins: _containers.RepeatedCompositeFieldContainer[ConnectorPlugin]
    def __init__(self, plugins: _Optional[_Iterable[_Union[ConnectorPlugin, _Mapping]]] = ...) -> None: ...

class ValidateConnectorRequest(_message.Message):
    __slots__ = ("name", "config")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ValidateConnectorReply(_message.Message):
    __slots__ = ("connector_class", "error_count", "settings")
    CONNECTOR_CLASS_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    connector_class: str
    error_count: int
    settings: _containers.RepeatedCompositeFieldContainer[ConnectorSetting]
    def __init__(self, connector_class: _Optional[str] = ..., error_count: _Optional[int] = ..., settings: _Optional[_Iterable[_Union[ConnectorSetting, _Mapping]]] = ...) -> None: ...

class Connector(_message.Message):
    __slots__ = ("name", "config", "type", "wanted", "state", "tasks", "by", "set_ms", "trace", "worker", "lag")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SET_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: _containers.ScalarMap[str, str]
    type: str
    wanted: str
    state: str
    tasks: _containers.RepeatedCompositeFieldContainer[ConnectorTask]
    by: str
    set_ms: int
    trace: str
    worker: str
    lag: int
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ..., type: _Optional[str] = ..., wanted: _Optional[str] = ..., state: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[ConnectorTask, _Mapping]]] = ..., by: _Optional[str] = ..., set_ms: _Optional[int] = ..., trace: _Optional[str] = ..., worker: _Optional[str] = ..., lag: _Optional[int] = ...) -> None: ...

class ConnectorTask(_message.Message):
    __slots__ = ("id", "state", "worker", "trace", "records_in", "records_out", "dropped", "failed", "dead", "retried", "last_error", "last_error_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OUT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    state: str
    worker: str
    trace: str
    records_in: int
    records_out: int
    dropped: int
    failed: int
    dead: int
    retried: int
    last_error: str
    last_error_ms: int
    def __init__(self, id: _Optional[int] = ..., state: _Optional[str] = ..., worker: _Optional[str] = ..., trace: _Optional[str] = ..., records_in: _Optional[int] = ..., records_out: _Optional[int] = ..., dropped: _Optional[int] = ..., failed: _Optional[int] = ..., dead: _Optional[int] = ..., retried: _Optional[int] = ..., last_error: _Optional[str] = ..., last_error_ms: _Optional[int] = ...) -> None: ...

class ListConnectorsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListConnectorsReply(_message.Message):
    __slots__ = ("connectors", "after")
    CONNECTORS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    connectors: _containers.RepeatedCompositeFieldContainer[Connector]
    after: str
    def __init__(self, connectors: _Optional[_Iterable[_Union[Connector, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class GetConnectorRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SetConnectorRequest(_message.Message):
    __slots__ = ("name", "config", "create", "wanted", "merge")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    config: _containers.ScalarMap[str, str]
    create: bool
    wanted: str
    merge: bool
    def __init__(self, name: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ..., create: _Optional[bool] = ..., wanted: _Optional[str] = ..., merge: _Optional[bool] = ...) -> None: ...

class DeleteConnectorRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteConnectorReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseConnectorRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class StopConnectorRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ResumeConnectorRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RestartConnectorRequest(_message.Message):
    __slots__ = ("name", "task", "only_failed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ONLY_FAILED_FIELD_NUMBER: _ClassVar[int]
    name: str
    task: int
    only_failed: bool
    def __init__(self, name: _Optional[str] = ..., task: _Optional[int] = ..., only_failed: _Optional[bool] = ...) -> None: ...

class GetConnectorOffsetsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ConnectorOffset(_message.Message):
    __slots__ = ("task", "source", "offset")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    task: int
    source: str
    offset: str
    def __init__(self, task: _Optional[int] = ..., source: _Optional[str] = ..., offset: _Optional[str] = ...) -> None: ...

class ConnectorOffsets(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[ConnectorOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[ConnectorOffset, _Mapping]]] = ...) -> None: ...

class SetConnectorOffsetsRequest(_message.Message):
    __slots__ = ("name", "offsets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    offsets: _containers.RepeatedCompositeFieldContainer[ConnectorOffset]
    def __init__(self, name: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[ConnectorOffset, _Mapping]]] = ...) -> None: ...

class ResetConnectorOffsetsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ConnectWorker(_message.Message):
    __slots__ = ("id", "host", "version", "heard_ms", "tasks")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    version: str
    heard_ms: int
    tasks: int
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., version: _Optional[str] = ..., heard_ms: _Optional[int] = ..., tasks: _Optional[int] = ...) -> None: ...

class ListConnectWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConnectWorkersReply(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[ConnectWorker]
    def __init__(self, workers: _Optional[_Iterable[_Union[ConnectWorker, _Mapping]]] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("limit", "since_ms", "until_ms", "user", "event", "denied", "source")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    limit: int
    since_ms: int
    until_ms: int
    user: str
    event: str
    denied: bool
    source: str
    def __init__(self, limit: _Optional[int] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., user: _Optional[str] = ..., event: _Optional[str] = ..., denied: _Optional[bool] = ..., source: _Optional[str] = ...) -> None: ...

class ListAuditReply(_message.Message):
    __slots__ = ("events", "is_cut")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[AuditEvent]
    is_cut: bool
    def __init__(self, events: _Optional[_Iterable[_Union[AuditEvent, _Mapping]]] = ..., is_cut: _Optional[bool] = ...) -> None: ...

class AuditEvent(_message.Message):
    __slots__ = ("time_ms", "process", "event", "allowed", "action", "resource", "user", "client", "source", "rule", "why", "request", "count", "since_ms", "sample")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    process: str
    event: str
    allowed: bool
    action: str
    resource: str
    user: str
    client: str
    source: str
    rule: str
    why: str
    request: str
    count: int
    since_ms: int
    sample: int
    def __init__(self, time_ms: _Optional[int] = ..., process: _Optional[str] = ..., event: _Optional[str] = ..., allowed: _Optional[bool] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ..., user: _Optional[str] = ..., client: _Optional[str] = ..., source: _Optional[str] = ..., rule: _Optional[str] = ..., why: _Optional[str] = ..., request: _Optional[str] = ..., count: _Optional[int] = ..., since_ms: _Optional[int] = ..., sample: _Optional[int] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ("digest", "position")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    digest: bool
    position: int
    def __init__(self, digest: _Optional[bool] = ..., position: _Optional[int] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("node", "others", "shared_log", "digest", "digest_at")
    NODE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    SHARED_LOG_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_AT_FIELD_NUMBER: _ClassVar[int]
    node: ClusterNode
    others: _containers.RepeatedCompositeFieldContainer[ClusterNode]
    shared_log: SharedLog
    digest: str
    digest_at: int
    def __init__(self, node: _Optional[_Union[ClusterNode, _Mapping]] = ..., others: _Optional[_Iterable[_Union[ClusterNode, _Mapping]]] = ..., shared_log: _Optional[_Union[SharedLog, _Mapping]] = ..., digest: _Optional[str] = ..., digest_at: _Optional[int] = ...) -> None: ...

class ClusterNode(_message.Message):
    __slots__ = ("node", "role", "leader", "leader_address", "epoch", "slot", "position", "address", "silence_s", "trouble", "unreached_s", "unreached", "gateways", "drained", "clients", "site", "standby", "tier")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_S_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    node: str
    role: str
    leader: str
    leader_address: str
    epoch: int
    slot: int
    position: int
    address: str
    silence_s: float
    trouble: str
    unreached_s: float
    unreached: str
    gateways: _containers.RepeatedScalarFieldContainer[str]
    drained: bool
    clients: _containers.RepeatedCompositeFieldContainer[NodeClients]
    site: str
    standby: str
    tier: NodeTier
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., leader: _Optional[str] = ..., leader_address: _Optional[str] = ..., epoch: _Optional[int] = ..., slot: _Optional[int] = ..., position: _Optional[int] = ..., address: _Optional[str] = ..., silence_s: _Optional[float] = ..., trouble: _Optional[str] = ..., unreached_s: _Optional[float] = ..., unreached: _Optional[str] = ..., gateways: _Optional[_Iterable[str]] = ..., drained: _Optional[bool] = ..., clients: _Optional[_Iterable[_Union[NodeClients, _Mapping]]] = ..., site: _Optional[str] = ..., standby: _Optional[str] = ..., tier: _Optional[_Union[NodeTier, _Mapping]] = ...) -> None: ...

class NodeTier(_message.Message):
    __slots__ = ("segments", "object_bytes", "local_begin", "waiting_bytes", "error")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_BEGIN_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    segments: int
    object_bytes: int
    local_begin: int
    waiting_bytes: int
    error: str
    def __init__(self, segments: _Optional[int] = ..., object_bytes: _Optional[int] = ..., local_begin: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class NodeClients(_message.Message):
    __slots__ = ("node", "is_known", "devices", "service_calls")
    NODE_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CALLS_FIELD_NUMBER: _ClassVar[int]
    node: str
    is_known: bool
    devices: int
    service_calls: int
    def __init__(self, node: _Optional[str] = ..., is_known: _Optional[bool] = ..., devices: _Optional[int] = ..., service_calls: _Optional[int] = ...) -> None: ...

class SharedLog(_message.Message):
    __slots__ = ("begin", "snapshot")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    begin: int
    snapshot: LogSnapshot
    def __init__(self, begin: _Optional[int] = ..., snapshot: _Optional[_Union[LogSnapshot, _Mapping]] = ...) -> None: ...

class LogSnapshot(_message.Message):
    __slots__ = ("number", "slot", "position", "node", "time_ms", "bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    slot: int
    position: int
    node: str
    time_ms: int
    bytes: int
    def __init__(self, number: _Optional[int] = ..., slot: _Optional[int] = ..., position: _Optional[int] = ..., node: _Optional[str] = ..., time_ms: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ChangeLeaderRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ChangeLeaderReply(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: str
    def __init__(self, leader: _Optional[str] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("node", "rate", "services_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    SERVICES_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    rate: int
    services_s: int
    def __init__(self, node: _Optional[str] = ..., rate: _Optional[int] = ..., services_s: _Optional[int] = ...) -> None: ...

class DrainNodeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UndrainNodeRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class UndrainNodeReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PromoteSiteRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PromoteSiteReply(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: str
    def __init__(self, leader: _Optional[str] = ...) -> None: ...

class ListSubjectsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSubjectsReply(_message.Message):
    __slots__ = ("subjects", "compatibility", "after")
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    subjects: _containers.RepeatedCompositeFieldContainer[Subject]
    compatibility: str
    after: str
    def __init__(self, subjects: _Optional[_Iterable[_Union[Subject, _Mapping]]] = ..., compatibility: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class GetSubjectRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Subject(_message.Message):
    __slots__ = ("name", "compatibility", "has_own_compatibility", "versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    HAS_OWN_COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    compatibility: str
    has_own_compatibility: bool
    versions: _containers.RepeatedCompositeFieldContainer[SchemaVersion]
    def __init__(self, name: _Optional[str] = ..., compatibility: _Optional[str] = ..., has_own_compatibility: _Optional[bool] = ..., versions: _Optional[_Iterable[_Union[SchemaVersion, _Mapping]]] = ...) -> None: ...

class SchemaVersion(_message.Message):
    __slots__ = ("number", "id", "by", "set_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SET_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    id: int
    by: str
    set_ms: int
    def __init__(self, number: _Optional[int] = ..., id: _Optional[int] = ..., by: _Optional[str] = ..., set_ms: _Optional[int] = ...) -> None: ...

class GetSchemaRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("id", "kind", "text")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    text: str
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class RegisterSchemaRequest(_message.Message):
    __slots__ = ("name", "kind", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    text: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class CheckSchemaRequest(_message.Message):
    __slots__ = ("name", "kind", "text", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    text: str
    version: int
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class CheckSchemaReply(_message.Message):
    __slots__ = ("compatible", "problems", "known")
    COMPATIBLE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    compatible: bool
    problems: _containers.RepeatedScalarFieldContainer[str]
    known: SchemaVersion
    def __init__(self, compatible: _Optional[bool] = ..., problems: _Optional[_Iterable[str]] = ..., known: _Optional[_Union[SchemaVersion, _Mapping]] = ...) -> None: ...

class DeleteSubjectRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteSubjectReply(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, versions: _Optional[_Iterable[int]] = ...) -> None: ...

class SetCompatibilityRequest(_message.Message):
    __slots__ = ("name", "compatibility")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    compatibility: str
    def __init__(self, name: _Optional[str] = ..., compatibility: _Optional[str] = ...) -> None: ...

class SetCompatibilityReply(_message.Message):
    __slots__ = ("compatibility",)
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    compatibility: str
    def __init__(self, compatibility: _Optional[str] = ...) -> None: ...

class ListBindingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBindingsReply(_message.Message):
    __slots__ = ("bindings",)
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    bindings: _containers.RepeatedCompositeFieldContainer[SchemaBinding]
    def __init__(self, bindings: _Optional[_Iterable[_Union[SchemaBinding, _Mapping]]] = ...) -> None: ...

class SchemaBinding(_message.Message):
    __slots__ = ("topic_filter", "subject", "mode", "version", "quarantine", "by", "set_ms")
    TOPIC_FILTER_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SET_MS_FIELD_NUMBER: _ClassVar[int]
    topic_filter: str
    subject: str
    mode: str
    version: int
    quarantine: str
    by: str
    set_ms: int
    def __init__(self, topic_filter: _Optional[str] = ..., subject: _Optional[str] = ..., mode: _Optional[str] = ..., version: _Optional[int] = ..., quarantine: _Optional[str] = ..., by: _Optional[str] = ..., set_ms: _Optional[int] = ...) -> None: ...

class SetBindingRequest(_message.Message):
    __slots__ = ("topic_filter", "name", "mode", "version", "quarantine")
    TOPIC_FILTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    topic_filter: str
    name: str
    mode: str
    version: int
    quarantine: str
    def __init__(self, topic_filter: _Optional[str] = ..., name: _Optional[str] = ..., mode: _Optional[str] = ..., version: _Optional[int] = ..., quarantine: _Optional[str] = ...) -> None: ...

class DeleteBindingRequest(_message.Message):
    __slots__ = ("topic_filter",)
    TOPIC_FILTER_FIELD_NUMBER: _ClassVar[int]
    topic_filter: str
    def __init__(self, topic_filter: _Optional[str] = ...) -> None: ...

class DeleteBindingReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckPayloadRequest(_message.Message):
    __slots__ = ("name", "version", "payload")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    payload: bytes
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class CheckPayloadReply(_message.Message):
    __slots__ = ("fault",)
    FAULT_FIELD_NUMBER: _ClassVar[int]
    fault: str
    def __init__(self, fault: _Optional[str] = ...) -> None: ...

class InferSchemaRequest(_message.Message):
    __slots__ = ("topic_filter", "limit")
    TOPIC_FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic_filter: str
    limit: int
    def __init__(self, topic_filter: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class InferSchemaReply(_message.Message):
    __slots__ = ("text", "messages")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    text: str
    messages: int
    def __init__(self, text: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class PreviewSchemaRequest(_message.Message):
    __slots__ = ("topic_filter", "limit", "name", "kind", "text")
    TOPIC_FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    topic_filter: str
    limit: int
    name: str
    kind: str
    text: str
    def __init__(self, topic_filter: _Optional[str] = ..., limit: _Optional[int] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class PreviewSchemaReply(_message.Message):
    __slots__ = ("messages", "faults")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    messages: int
    faults: _containers.RepeatedCompositeFieldContainer[PayloadFault]
    def __init__(self, messages: _Optional[int] = ..., faults: _Optional[_Iterable[_Union[PayloadFault, _Mapping]]] = ...) -> None: ...

class PayloadFault(_message.Message):
    __slots__ = ("position", "topic", "fault")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    position: int
    topic: str
    fault: str
    def __init__(self, position: _Optional[int] = ..., topic: _Optional[str] = ..., fault: _Optional[str] = ...) -> None: ...

class ListShadowsRequest(_message.Message):
    __slots__ = ("thing",)
    THING_FIELD_NUMBER: _ClassVar[int]
    thing: str
    def __init__(self, thing: _Optional[str] = ...) -> None: ...

class ListShadowsReply(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class GetShadowRequest(_message.Message):
    __slots__ = ("thing", "name")
    THING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    thing: str
    name: str
    def __init__(self, thing: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class UpdateShadowRequest(_message.Message):
    __slots__ = ("thing", "name", "state", "version")
    THING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    thing: str
    name: str
    state: _struct_pb2.Struct
    version: int
    def __init__(self, thing: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("state", "metadata", "version")
    STATE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    state: _struct_pb2.Struct
    metadata: _struct_pb2.Struct
    version: int
    def __init__(self, state: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteShadowRequest(_message.Message):
    __slots__ = ("thing", "name")
    THING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    thing: str
    name: str
    def __init__(self, thing: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteShadowReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...
