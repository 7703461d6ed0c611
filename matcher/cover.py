"""Relations of two topic filters: whether one covers the other, and whether they overlap.

As in `matcher.names`, arguments are valid filters, not shared ones.
"""


def covers(wide: bytes, narrow: bytes) -> bool:
    """Whether every topic that `narrow` matches is one that `wide` matches."""
    if _of_other_tree(wide, narrow):
        return False
    return covers_levels(wide.split(b"/"), narrow.split(b"/"))


class Shape:
    """A filter that is compared with many others. The part before its first wildcard decides most comparisons."""

    __slots__ = ("_levels", "_literal")

    def __init__(self, topic_filter: bytes) -> None:
        self._levels: list[bytes] = topic_filter.split(b"/")
        self._literal: bytes = topic_filter.partition(b"+")[0].partition(b"#")[0]  # b"": it begins with a wildcard

    def overlaps(self, other: "Shape") -> bool:
        """Whether both filters match some topic."""
        one, its = self._literal, other._literal
        if not (one.startswith(its) or its.startswith(one)):
            return False
        if (not one and its[:1] == b"$") or (not its and one[:1] == b"$"):
            return False  # MQTT-4.7.2-1
        return overlap_levels(self._levels, other._levels)


def covers_levels(wide: list[bytes], narrow: list[bytes]) -> bool:
    """Whether the filter levels `wide` match every topic that `narrow` matches, without the rule on $."""
    if narrow[-1] == b"#" and wide[-1] != b"#":
        return False
    at = 0
    for level in wide:
        if level == b"#":
            return True  # `a/#` also matches `a` (MQTT 5.0, 4.7.1.2)
        if at == len(narrow):
            return False
        here = narrow[at]
        if here == b"#" or level not in (b"+", here):
            return False
        at += 1
    return at == len(narrow)


def overlap_levels(one: list[bytes], other: list[bytes]) -> bool:
    """Whether two lists of filter levels match a common topic, without the rule on $."""
    at = 0
    while at < len(one) and at < len(other):
        left, right = one[at], other[at]
        if left != right:
            if left == b"#" or right == b"#":
                return True
            if left != b"+" and right != b"+":
                return False
        at += 1
    # The longer filter may end in #, which also matches no level at all.
    rest = one[at:] or other[at:]
    return not rest or rest == [b"#"]


def _of_other_tree(wide: bytes, narrow: bytes) -> bool:
    """Whether `wide` begins with a wildcard and `narrow` with $, so that they match no common topic (MQTT-4.7.2-1)."""
    return wide[:1] in (b"+", b"#") and narrow[:1] == b"$"
