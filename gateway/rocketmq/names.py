"""Maps topics and groups of RocketMQ to names of Sluice.

A RocketMQ topic is a parent topic: the first level of MQTT topics. A name in a namespace is `namespace%name`, as in
RocketMQ. The topic `%DLQ%group` has the dead letters of a group and is read-only.
"""

from functools import lru_cache
from typing import Final

from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import RocketError
from gateway.rpc.groups.long_polling import Source, dead_letter_source, parent_source
from matcher.names import is_shared
from matcher.reserved import DOLLAR
from store.api import EVENT_RULE, QueueStore

_DEAD_LETTERS: Final = "%DLQ%"
_MAX_NAME: Final = 255  # bytes of a topic or a group
_CACHED: Final = 4_096


def parent_of_topic(topic: pb.Resource) -> bytes:
    """The parent topic of a RocketMQ topic that accepts messages. Raises `RocketError`."""
    return _parent(topic.resource_namespace, topic.name)


def resource_of(parent: bytes) -> pb.Resource:
    """The RocketMQ topic of a parent topic."""
    namespace, mark, name = parent.decode(errors="replace").partition("%")
    return (
        pb.Resource(resource_namespace=namespace, name=name)
        if namespace and mark and name
        else pb.Resource(name=namespace + mark + name)
    )


def source_of(group: pb.Resource, topic: pb.Resource, store: QueueStore) -> Source:
    """The source that a group receives a topic from. Raises `RocketError`."""
    name = group_name(group)
    if topic.name.startswith(_DEAD_LETTERS):
        owner = _qualified(topic.resource_namespace, topic.name[len(_DEAD_LETTERS) :]).encode()
        if owner != name:
            raise RocketError(
                pb.ILLEGAL_TOPIC, f"{topic.name!r} does not have the dead letters of the group {name.decode()!r}"
            )
        return dead_letter_source(name)
    parent = parent_of_topic(topic)
    return parent_source(name, parent, store.partition_count(parent))


def group_name(group: pb.Resource) -> bytes:
    """The name of a consumer group. Raises `RocketError`."""
    name = _qualified(group.resource_namespace, group.name).encode()
    if not group.name or len(name) > _MAX_NAME or b"\0" in name or is_shared(name) or name.startswith(EVENT_RULE):
        raise RocketError(pb.ILLEGAL_CONSUMER_GROUP, f"{group.name!r} is not a group name of 1 to {_MAX_NAME} bytes")
    return name


@lru_cache(_CACHED)
def _parent(namespace: str, name: str) -> bytes:
    parent = _qualified(namespace, name).encode()
    if not name or len(parent) > _MAX_NAME or any(mark in parent for mark in b"/+#\0"):
        raise RocketError(
            pb.ILLEGAL_TOPIC, f"{name!r} is not a topic name of 1 to {_MAX_NAME} bytes without '/', '+' or '#'"
        )
    if parent[0] == DOLLAR or name.startswith(_DEAD_LETTERS):
        raise RocketError(pb.ILLEGAL_TOPIC, f"messages cannot be sent to the topic {name!r}")
    return parent


def _qualified(namespace: str, name: str) -> str:
    return f"{namespace}%{name}" if namespace else name
