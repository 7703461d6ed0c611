from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProduceRequest(_message.Message):
    __slots__ = ("sequence", "frames")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    frames: bytes
    def __init__(self, sequence: _Optional[int] = ..., frames: _Optional[bytes] = ...) -> None: ...

class ProduceReply(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ProduceResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ProduceResult, _Mapping]]] = ...) -> None: ...

class ProduceResult(_message.Message):
    __slots__ = ("sequence", "positions", "store_time", "rejected", "error")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    store_time: int
    rejected: _containers.RepeatedCompositeFieldContainer[Rejection]
    error: str
    def __init__(self, sequence: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., store_time: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("index", "reason")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("parent", "partition", "offset", "max_records", "max_bytes", "wait_ms")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    parent: str
    partition: int
    offset: int
    max_records: int
    max_bytes: int
    wait_ms: int
    def __init__(self, parent: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("offset", "count", "frames", "begin", "end")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    offset: int
    count: int
    frames: bytes
    begin: int
    end: int
    def __init__(self, offset: _Optional[int] = ..., count: _Optional[int] = ..., frames: _Optional[bytes] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class PartitionsRequest(_message.Message):
    __slots__ = ("parent",)
    PARENT_FIELD_NUMBER: _ClassVar[int]
    parent: str
    def __init__(self, parent: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("group", "parent", "max_records", "max_bytes", "invisible_ms", "wait_ms", "from_earliest")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    FROM_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    max_records: int
    max_bytes: int
    invisible_ms: int
    wait_ms: int
    from_earliest: bool
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., from_earliest: _Optional[bool] = ...) -> None: ...

class ReceiveReply(_message.Message):
    __slots__ = ("lease", "runs", "frames")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    lease: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    frames: bytes
    def __init__(self, lease: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., frames: _Optional[bytes] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("partition", "offset", "count")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    count: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("group", "parent", "done", "release")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    group: str
    parent: str
    done: _containers.RepeatedScalarFieldContainer[int]
    release: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., parent: _Optional[str] = ..., done: _Optional[_Iterable[int]] = ..., release: _Optional[_Iterable[int]] = ...) -> None: ...

class AcknowledgeReply(_message.Message):
    __slots__ = ("expired",)
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    expired: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, expired: _Optional[_Iterable[int]] = ...) -> None: ...
