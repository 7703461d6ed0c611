"""Topic names and topic filters: their validity, and whether a filter matches a topic (MQTT 5.0 section 4.7).

The rules of this file:

* Names are `bytes` as they come off the wire. No function returns decoded text.
* Only the `is_valid_*` functions validate their argument. All others expect a valid name or filter.
"""

from typing import Final

MAX_LENGTH: Final = 0xFFFF  # bytes: the length of a UTF-8 string is 16 bit on the wire
MAX_LEVELS: Final = 128  # a limit of this server, not of MQTT: bounds the work of one match

_SHARE: Final = b"$share/"
# As numbers: `b"+" in name` costs ten times as much, because CPython tries the operand as a number first.
_PLUS: Final = 0x2B
_HASH: Final = 0x23
_NUL: Final = 0


def is_valid_topic(topic: bytes) -> bool:
    """Whether a message may be published to `topic` (MQTT-1.5.4-1, -2, 3.3.2-2, 4.7.3-1 to -3)."""
    return not has_wildcard(topic) and _is_valid_name(topic)


def is_valid_filter(topic_filter: bytes) -> bool:
    """Whether `topic_filter` may be subscribed to (MQTT-4.7.1-1, -2), plain or shared (MQTT-4.8.2-1, -2)."""
    if not _is_valid_name(topic_filter):
        return False
    if topic_filter.startswith(_SHARE):
        group, slash, topic_filter = topic_filter[len(_SHARE) :].partition(b"/")
        if not group or not slash or not topic_filter or has_wildcard(group):
            return False
    if not has_wildcard(topic_filter):
        return True
    # Without a loop over the levels: a SUBSCRIBE may have a thousand filters of a hundred levels.
    hash_at = topic_filter.find(b"#")
    if hash_at >= 0 and (hash_at != len(topic_filter) - 1 or (hash_at > 0 and not topic_filter.endswith(b"/#"))):
        return False
    count = topic_filter.count(b"+")
    between = b"/" + topic_filter + b"/"
    return between.count(b"/+") == count and between.count(b"+/") == count


def has_wildcard(topic_filter: bytes) -> bool:
    """Whether `topic_filter` can match more than one topic."""
    return _PLUS in topic_filter or _HASH in topic_filter


def is_shared(topic_filter: bytes) -> bool:
    """Whether a valid filter is that of a shared subscription (MQTT 5.0 section 4.8.2)."""
    return topic_filter.startswith(_SHARE)


def split_shared(topic_filter: bytes) -> tuple[bytes, bytes]:
    """`$share/group/filter` as (group, filter); a filter that is not shared as (b"", filter)."""
    if not topic_filter.startswith(_SHARE):
        return b"", topic_filter
    group, _, inner = topic_filter[len(_SHARE) :].partition(b"/")
    return group, inner


def parent_of(topic: bytes) -> bytes:
    """The parent topic: the first level, which may be empty."""
    return topic.split(b"/", 1)[0]


def levels(name: bytes) -> list[bytes]:
    """The levels of a topic or a filter; each may be empty (MQTT-4.7.3-4)."""
    return name.split(b"/")


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Whether the filter (not a shared one) matches the topic.

    A filter that begins with a wildcard does not match a topic that begins with $ (MQTT-4.7.2-1).
    """
    if not has_wildcard(topic_filter):
        return topic_filter == topic
    if topic.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
        return False
    return levels_match(topic_filter.split(b"/"), topic.split(b"/"), 0)


def levels_match(wanted: list[bytes], given: list[bytes], start: int) -> bool:
    """Whether the filter levels `wanted` match the topic levels `given[start:]`, without the rule on $."""
    i = start
    for level in wanted:
        if level == b"#":
            return True  # also of the level above it: `a/#` matches `a` (4.7.1.2)
        if i == len(given) or (level != b"+" and level != given[i]):
            return False
        i += 1
    return i == len(given)


def _is_valid_name(name: bytes) -> bool:
    if not 0 < len(name) <= MAX_LENGTH or _NUL in name or name.count(b"/") >= MAX_LEVELS:
        return False
    if name.isascii():
        return True
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
