"""Topics and groups of RocketMQ, as names of Sluice.

A topic is a parent topic: the first level of MQTT topics. A name in a namespace is `namespace%name`, as in RocketMQ.
The topic `%DLQ%group` is the dead letters of a group, which are read there and not written.
"""

from functools import lru_cache
from typing import Final

from gateway.rocketmq.proto import rocketmq_pb2 as pb
from gateway.rocketmq.status import RocketError
from gateway.rpc.long_polling import Source, dead_letter_source, parent_source
from matcher.names import is_shared
from matcher.reserved import DOLLAR

_DEAD_LETTERS: Final = "%DLQ%"
_MAX_NAME: Final = 255  # bytes, of a topic or a group
_KNOWN: Final = 4_096


def parent_of_topic(topic: pb.Resource) -> bytes:
    """The parent topic that messages are sent to. Raises `RocketError`."""
    return _parent(topic.resource_namespace, topic.name)


def resource_of(parent: bytes) -> pb.Resource:
    """The topic that a parent topic is to RocketMQ's clients."""
    namespace, mark, name = parent.decode(errors="replace").partition("%")
    return (
        pb.Resource(resource_namespace=namespace, name=name)
        if namespace and mark and name
        else pb.Resource(name=namespace + mark + name)
    )


def source_of(group: pb.Resource, topic: pb.Resource, partitions: int) -> Source:
    """What a group receives from when it receives from a topic. Raises `RocketError`."""
    name = group_name(group)
    if topic.name.startswith(_DEAD_LETTERS):
        wanted = _qualified(topic.resource_namespace, topic.name[len(_DEAD_LETTERS) :]).encode()
        if wanted != name:
            raise RocketError(
                pb.ILLEGAL_TOPIC, f"{topic.name!r} are the dead letters of another group than {name.decode()!r}"
            )
        return dead_letter_source(name)
    return parent_source(name, parent_of_topic(topic), partitions)


def group_name(group: pb.Resource) -> bytes:
    """A consumer group. Raises `RocketError`."""
    name = _qualified(group.resource_namespace, group.name).encode()
    if not group.name or len(name) > _MAX_NAME or b"\0" in name or is_shared(name):
        raise RocketError(pb.ILLEGAL_CONSUMER_GROUP, f"{group.name!r} is not a consumer group: 1 to {_MAX_NAME} bytes")
    return name


@lru_cache(_KNOWN)
def _parent(namespace: str, name: str) -> bytes:
    parent = _qualified(namespace, name).encode()
    if not name or len(parent) > _MAX_NAME or any(mark in parent for mark in b"/+#\0"):
        raise RocketError(pb.ILLEGAL_TOPIC, f"{name!r} is not a topic: 1 to {_MAX_NAME} bytes, without '/', '+' or '#'")
    if parent[0] == DOLLAR or name.startswith(_DEAD_LETTERS):
        raise RocketError(pb.ILLEGAL_TOPIC, f"{name!r} is no topic that messages are sent to")
    return parent


def _qualified(namespace: str, name: str) -> str:
    return f"{namespace}%{name}" if namespace else name
