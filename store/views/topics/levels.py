"""Topics as names of rows, in the order of their levels. Each slash becomes a NUL, which no topic contains.

NUL sorts before every other byte. So the topics below a topic follow it directly, before its next sibling: `a`,
`a/b`, `a/b/c`, `a!`. One seek skips all of them.
"""

from typing import Final

_BEHIND: Final = b"\1"  # the lowest byte that a topic can contain


def row_name(topic: bytes) -> bytes:
    """The row name of a topic, or of the beginning of one."""
    return topic.replace(b"/", b"\0")


def topic_of(name: bytes) -> bytes:
    """The topic of a row name."""
    return name.replace(b"\0", b"/")


def behind_all_below(name: bytes) -> bytes:
    """The lowest name after a row and all rows below it."""
    return name + _BEHIND


def where_matches_go_on(wanted: list[bytes], given: list[bytes]) -> bytes | None:
    """Where to continue a scan from the topic with levels `given`, for topics that match the filter `wanted`.

    Returns the topic's own row name if it matches, else a later name before which no row matches. None if no later
    row can match. A filter that begins with a wildcard does not match topics that begin with $ (MQTT-4.7.2-1).
    """
    if given[0][:1] == b"$" and wanted[0] in (b"+", b"#"):
        return b"%"  # the byte after $
    widest = 0  # number of levels of `given` up to the last one that matched a +
    for i, level in enumerate(wanted):
        if level == b"#":
            return b"\0".join(given)  # `a/#` also matches `a` (MQTT 5.0, 4.7.1.2)
        if i == len(given):
            return b"\0".join(given + _least(wanted[i:]))
        if level == b"+":
            widest = i + 1
        elif given[i] < level:
            return b"\0".join(given[:i] + _least(wanted[i:]))
        elif given[i] > level:
            break
    else:
        if len(given) == len(wanted):
            return b"\0".join(given)
    return behind_all_below(b"\0".join(given[:widest])) if widest else None


def _least(wanted: list[bytes]) -> list[bytes]:
    """The levels of the lowest topic that matches the levels of a filter."""
    return [b"" if level == b"+" else level for level in wanted if level != b"#"]
