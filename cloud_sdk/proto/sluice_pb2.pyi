from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Selection(_message.Message):
    __slots__ = ("topic_filter", "tags", "sql")
    TOPIC_FILTER_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    topic_filter: str
    tags: str
    sql: str
    def __init__(self, topic_filter: _Optional[str] = ..., tags: _Optional[str] = ..., sql: _Optional[str] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("sequence", "frames", "producer", "again", "returns", "ends", "digest")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    frames: bytes
    producer: bytes
    again: bool
    returns: bool
    ends: bool
    digest: int
    def __init__(self, sequence: _Optional[int] = ..., frames: _Optional[bytes] = ..., producer: _Optional[bytes] = ..., again: _Optional[bool] = ..., returns: _Optional[bool] = ..., ends: _Optional[bool] = ..., digest: _Optional[int] = ...) -> None: ...

class ProduceReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ProduceResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ProduceResult, _Mapping]]] = ...) -> None: ...

class ProduceResult(_message.Message):
    __slots__ = ("sequence", "positions", "store_time", "rejected", "error", "was_stored", "stored_to")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WAS_STORED_FIELD_NUMBER: _ClassVar[int]
    STORED_TO_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    store_time: int
    rejected: _containers.RepeatedCompositeFieldContainer[Rejection]
    error: str
    was_stored: bool
    stored_to: int
    def __init__(self, sequence: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., store_time: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ..., error: _Optional[str] = ..., was_stored: _Optional[bool] = ..., stored_to: _Optional[int] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("parent", "partition", "offset", "max_records", "max_bytes", "wait_ms", "selection", "without", "until", "known_partitions", "keys")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    KNOWN_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    parent: str
    partition: int
    offset: int
    max_records: int
    max_bytes: int
    wait_ms: int
    selection: Selection
    without: int
    until: int
    known_partitions: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parent: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., selection: _Optional[_Union[Selection, _Mapping]] = ..., without: _Optional[int] = ..., until: _Optional[int] = ..., known_partitions: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("offset", "count", "frames", "begin", "end", "offsets", "next_offset", "gone", "partitions")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    count: int
    frames: bytes
    begin: int
    end: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    next_offset: int
    gone: int
    partitions: int
    def __init__(self, offset: _Optional[int] = ..., count: _Optional[int] = ..., frames: _Optional[bytes] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., next_offset: _Optional[int] = ..., gone: _Optional[int] = ..., partitions: _Optional[int] = ...) -> None: ...

class PartitionsRequest(_message.Message):
    __slots__ = ("parent", "topic_filter")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FILTER_FIELD_NUMBER: _ClassVar[int]
    parent: str
    topic_filter: str
    def __init__(self, parent: _Optional[str] = ..., topic_filter: _Optional[str] = ...) -> None: ...

class PartitionsReply(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("partition", "begin", "end")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    partition: int
    begin: int
    end: int
    def __init__(self, partition: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class OffsetAtRequest(_message.Message):
    __slots__ = ("parent", "partition", "time_ms")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    parent: str
    partition: int
    time_ms: int
    def __init__(self, parent: _Optional[str] = ..., partition: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class OffsetAtReply(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class TopicsRequest(_message.Message):
    __slots__ = ("prefix", "after", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    after: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class TopicsReply(_message.Message):
    __slots__ = ("topics", "more")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., more: _Optional[bool] = ...) -> None: ...

class ChildrenRequest(_message.Message):
    __slots__ = ("above", "after", "limit")
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    above: str
    after: str
    limit: int
    def __init__(self, above: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ChildrenReply(_message.Message):
    __slots__ = ("children", "more")
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    children: _containers.RepeatedCompositeFieldContainer[Child]
    more: bool
    def __init__(self, children: _Optional[_Iterable[_Union[Child, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class Child(_message.Message):
    __slots__ = ("name", "is_topic", "has_children")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_TOPIC_FIELD_NUMBER: _ClassVar[int]
    HAS_CHILDREN_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_topic: bool
    has_children: bool
    def __init__(self, name: _Optional[str] = ..., is_topic: _Optional[bool] = ..., has_children: _Optional[bool] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("parent", "key", "position", "after", "max_records", "max_bytes")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    parent: str
    key: str
    position: int
    after: int
    max_records: int
    max_bytes: int
    def __init__(self, parent: _Optional[str] = ..., key: _Optional[str] = ..., position: _Optional[int] = ..., after: _Optional[int] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class FindReply(_message.Message):
    __slots__ = ("frames", "after")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    frames: bytes
    after: int
    def __init__(self, frames: _Optional[bytes] = ..., after: _Optional[int] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("group", "parent", "dead_letters", "max_records", "max_bytes", "invisible_ms", "wait_ms", "from_earliest", "max_deliveries", "done", "again", "selection", "ordered", "member")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    FROM_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    dead_letters: bool
    max_records: int
    max_bytes: int
    invisible_ms: int
    wait_ms: int
    from_earliest: bool
    max_deliveries: int
    done: _containers.RepeatedCompositeFieldContainer[Run]
    again: _containers.RepeatedCompositeFieldContainer[Postponed]
    selection: Selection
    ordered: bool
    member: str
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., dead_letters: _Optional[bool] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., from_earliest: _Optional[bool] = ..., max_deliveries: _Optional[int] = ..., done: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., again: _Optional[_Iterable[_Union[Postponed, _Mapping]]] = ..., selection: _Optional[_Union[Selection, _Mapping]] = ..., ordered: _Optional[bool] = ..., member: _Optional[str] = ...) -> None: ...

class ReceiveReply(_message.Message):
    __slots__ = ("runs", "frames", "expired", "dead_letters")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    frames: bytes
    expired: _containers.RepeatedCompositeFieldContainer[Run]
    dead_letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., frames: _Optional[bytes] = ..., expired: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., dead_letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("reason", "error", "deliveries", "queue", "offset", "first_ms", "last_ms")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LEASE_ENDED: _ClassVar[DeadLetter.Reason]
        FAILED: _ClassVar[DeadLetter.Reason]
        FORWARDED: _ClassVar[DeadLetter.Reason]
        TOO_LARGE: _ClassVar[DeadLetter.Reason]
    LEASE_ENDED: DeadLetter.Reason
    FAILED: DeadLetter.Reason
    FORWARDED: DeadLetter.Reason
    TOO_LARGE: DeadLetter.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    reason: DeadLetter.Reason
    error: str
    deliveries: int
    queue: str
    offset: int
    first_ms: int
    last_ms: int
    def __init__(self, reason: _Optional[_Union[DeadLetter.Reason, str]] = ..., error: _Optional[str] = ..., deliveries: _Optional[int] = ..., queue: _Optional[str] = ..., offset: _Optional[int] = ..., first_ms: _Optional[int] = ..., last_ms: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("partition", "offset", "count", "deliveries")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    count: int
    deliveries: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., count: _Optional[int] = ..., deliveries: _Optional[int] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("group", "parent", "dead_letters", "done", "again", "member", "max_deliveries")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    dead_letters: bool
    done: _containers.RepeatedCompositeFieldContainer[Run]
    again: _containers.RepeatedCompositeFieldContainer[Postponed]
    member: str
    max_deliveries: int
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., dead_letters: _Optional[bool] = ..., done: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., again: _Optional[_Iterable[_Union[Postponed, _Mapping]]] = ..., member: _Optional[str] = ..., max_deliveries: _Optional[int] = ...) -> None: ...

class Postponed(_message.Message):
    __slots__ = ("run", "delay_ms", "unseen", "extends", "error", "last")
    RUN_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    EXTENDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    run: Run
    delay_ms: int
    unseen: bool
    extends: bool
    error: str
    last: bool
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., delay_ms: _Optional[int] = ..., unseen: _Optional[bool] = ..., extends: _Optional[bool] = ..., error: _Optional[str] = ..., last: _Optional[bool] = ...) -> None: ...

class AcknowledgeReply(_message.Message):
    __slots__ = ("expired",)
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    expired: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, expired: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("member", "number", "done", "again", "wants", "wait_ms", "stops")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    member: ReceiveRequest
    number: int
    done: _containers.RepeatedCompositeFieldContainer[Run]
    again: _containers.RepeatedCompositeFieldContainer[Postponed]
    wants: bool
    wait_ms: int
    stops: bool
    def __init__(self, member: _Optional[_Union[ReceiveRequest, _Mapping]] = ..., number: _Optional[int] = ..., done: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., again: _Optional[_Iterable[_Union[Postponed, _Mapping]]] = ..., wants: _Optional[bool] = ..., wait_ms: _Optional[int] = ..., stops: _Optional[bool] = ...) -> None: ...

class ConsumeReply(_message.Message):
    __slots__ = ("settled", "batch", "runs", "frames", "dead_letters")
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    settled: _containers.RepeatedCompositeFieldContainer[Settled]
    batch: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    frames: bytes
    dead_letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    def __init__(self, settled: _Optional[_Iterable[_Union[Settled, _Mapping]]] = ..., batch: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., frames: _Optional[bytes] = ..., dead_letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("number", "expired", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    expired: _containers.RepeatedCompositeFieldContainer[Run]
    error: str
    def __init__(self, number: _Optional[int] = ..., expired: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("group", "parent", "dead_letters", "offsets", "time_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    dead_letters: bool
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    time_ms: int
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., dead_letters: _Optional[bool] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ..., time_ms: _Optional[int] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ResetGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class RemoveGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class GroupsReply(_message.Message):
    __slots__ = ("groups", "more")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    more: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "queues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    def __init__(self, name: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("parent", "topic", "filter", "dead_letters", "partition", "floor", "next", "unfinished", "lag")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    parent: str
    topic: str
    filter: str
    dead_letters: str
    partition: int
    floor: int
    next: int
    unfinished: int
    lag: int
    def __init__(self, parent: _Optional[str] = ..., topic: _Optional[str] = ..., filter: _Optional[str] = ..., dead_letters: _Optional[str] = ..., partition: _Optional[int] = ..., floor: _Optional[int] = ..., next: _Optional[int] = ..., unfinished: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("handles",)
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handles: _Optional[_Iterable[int]] = ...) -> None: ...

class RecallReply(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, missing: _Optional[_Iterable[int]] = ...) -> None: ...

class TimersRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: bytes
    limit: int
    def __init__(self, after: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class TimersReply(_message.Message):
    __slots__ = ("timers", "after")
    TIMERS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    timers: _containers.RepeatedCompositeFieldContainer[Timer]
    after: bytes
    def __init__(self, timers: _Optional[_Iterable[_Union[Timer, _Mapping]]] = ..., after: _Optional[bytes] = ...) -> None: ...

class Timer(_message.Message):
    __slots__ = ("handle", "topic", "publisher", "due_ms")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    topic: str
    publisher: str
    due_ms: int
    def __init__(self, handle: _Optional[int] = ..., topic: _Optional[str] = ..., publisher: _Optional[str] = ..., due_ms: _Optional[int] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("handles", "commit")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    commit: bool
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., commit: _Optional[bool] = ...) -> None: ...

class EndTransactionReply(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, missing: _Optional[_Iterable[int]] = ...) -> None: ...

class TransactionChecksRequest(_message.Message):
    __slots__ = ("publisher",)
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    def __init__(self, publisher: _Optional[str] = ...) -> None: ...

class TransactionCheck(_message.Message):
    __slots__ = ("handle", "rounds", "frame")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    handle: int
    rounds: int
    frame: bytes
    def __init__(self, handle: _Optional[int] = ..., rounds: _Optional[int] = ..., frame: _Optional[bytes] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "parent", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class CommitOffsetsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommittedOffsetsRequest(_message.Message):
    __slots__ = ("group", "parent")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ...) -> None: ...

class CommittedOffsetsReply(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("position", "after")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    position: int
    after: bytes
    def __init__(self, position: _Optional[int] = ..., after: _Optional[bytes] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("events", "after")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    after: bytes
    def __init__(self, events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., after: _Optional[bytes] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("kind", "time_ms", "position", "who", "queue", "offset", "until_ms", "member", "reason", "error")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STORED: _ClassVar[TraceEvent.Kind]
        ENTERED: _ClassVar[TraceEvent.Kind]
        RECALLED: _ClassVar[TraceEvent.Kind]
        COMMITTED: _ClassVar[TraceEvent.Kind]
        ROLLED_BACK: _ClassVar[TraceEvent.Kind]
        LEASED: _ClassVar[TraceEvent.Kind]
        POSTPONED: _ClassVar[TraceEvent.Kind]
        FINISHED: _ClassVar[TraceEvent.Kind]
        DEAD_LETTERED: _ClassVar[TraceEvent.Kind]
        PASSED: _ClassVar[TraceEvent.Kind]
        SENT: _ClassVar[TraceEvent.Kind]
        ACKNOWLEDGED: _ClassVar[TraceEvent.Kind]
        MOVED: _ClassVar[TraceEvent.Kind]
    STORED: TraceEvent.Kind
    ENTERED: TraceEvent.Kind
    RECALLED: TraceEvent.Kind
    COMMITTED: TraceEvent.Kind
    ROLLED_BACK: TraceEvent.Kind
    LEASED: TraceEvent.Kind
    POSTPONED: TraceEvent.Kind
    FINISHED: TraceEvent.Kind
    DEAD_LETTERED: TraceEvent.Kind
    PASSED: TraceEvent.Kind
    SENT: TraceEvent.Kind
    ACKNOWLEDGED: TraceEvent.Kind
    MOVED: TraceEvent.Kind
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
    kind: TraceEvent.Kind
    time_ms: int
    position: int
    who: str
    queue: str
    offset: int
    until_ms: int
    member: str
    reason: DeadLetter.Reason
    error: str
    def __init__(self, kind: _Optional[_Union[TraceEvent.Kind, str]] = ..., time_ms: _Optional[int] = ..., position: _Optional[int] = ..., who: _Optional[str] = ..., queue: _Optional[str] = ..., offset: _Optional[int] = ..., until_ms: _Optional[int] = ..., member: _Optional[str] = ..., reason: _Optional[_Union[DeadLetter.Reason, str]] = ..., error: _Optional[str] = ...) -> None: ...

class NodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodesReply(_message.Message):
    __slots__ = ("endpoints",)
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, endpoints: _Optional[_Iterable[str]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value", "revision", "put_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PUT_MS_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    revision: int
    put_ms: int
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., revision: _Optional[int] = ..., put_ms: _Optional[int] = ...) -> None: ...

class GetEntryRequest(_message.Message):
    __slots__ = ("bucket", "key")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: str
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class GetEntryReply(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: Entry
    def __init__(self, entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...

class PutEntryRequest(_message.Message):
    __slots__ = ("bucket", "key", "value", "expected", "token")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: str
    value: bytes
    expected: int
    token: bytes
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ..., expected: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class RemoveEntryRequest(_message.Message):
    __slots__ = ("bucket", "key", "expected", "token")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    key: str
    expected: int
    token: bytes
    def __init__(self, bucket: _Optional[str] = ..., key: _Optional[str] = ..., expected: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class ChangeEntryReply(_message.Message):
    __slots__ = ("conflicts", "revision")
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    conflicts: bool
    revision: int
    def __init__(self, conflicts: _Optional[bool] = ..., revision: _Optional[int] = ...) -> None: ...

class EntriesRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "after", "limit")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    after: str
    limit: int
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class EntriesReply(_message.Message):
    __slots__ = ("entries", "after")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    after: str
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., after: _Optional[str] = ...) -> None: ...

class BucketChangesRequest(_message.Message):
    __slots__ = ("bucket", "prefix", "revision", "limit")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    prefix: str
    revision: int
    limit: int
    def __init__(self, bucket: _Optional[str] = ..., prefix: _Optional[str] = ..., revision: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class BucketChangesReply(_message.Message):
    __slots__ = ("entries", "revision", "more", "is_reset")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    IS_RESET_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    revision: int
    more: bool
    is_reset: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., revision: _Optional[int] = ..., more: _Optional[bool] = ..., is_reset: _Optional[bool] = ...) -> None: ...
