"""Topics as names of rows, in the order of their levels: each slash is a NUL, which no topic has.

NUL sorts before every other byte, so what is below a topic lies right behind it and all together, before its next
sibling: `a`, `a/b`, `a/b/c`, `a!`. However much it is, one seek passes over it.
"""

from typing import Final

_BEHIND: Final = b"\1"  # the least byte of a topic, which NUL is not


def row_name(topic: bytes) -> bytes:
    """The row's name of a topic, or of the beginning of one."""
    return topic.replace(b"/", b"\0")


def topic_of(name: bytes) -> bytes:
    """The topic that has this row."""
    return name.replace(b"\0", b"/")


def behind_all_below(name: bytes) -> bytes:
    """Where the rows behind a row and all that is below it begin."""
    return name + _BEHIND


def where_matches_go_on(wanted: list[bytes], given: list[bytes]) -> bytes | None:
    """From the topic with levels `given`, where topics that match the filter with levels `wanted` go on: its own row's
    name if it matches, else a name behind it before which no row matches; None when none behind it does.

    A filter that begins with a wildcard does not match what begins with $ (MQTT-4.7.2-1).
    """
    if given[0][:1] == b"$" and wanted[0] in (b"+", b"#"):
        return b"%"  # the byte behind $
    widest = 0  # levels of `given` up to the last one that any other may take the place of
    for i, level in enumerate(wanted):
        if level == b"#":
            return b"\0".join(given)  # also the level above it: `a/#` matches `a` (4.7.1.2)
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
    """The levels of the first topic in order that matches the levels of a filter."""
    return [b"" if level == b"+" else level for level in wanted if level != b"#"]
