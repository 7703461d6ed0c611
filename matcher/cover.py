"""How two topic filters lie to each other: whether one has every topic of the other, and whether they share one.

As in `matcher.names`, arguments are valid filters, not shared ones.
"""


def covers(wide: bytes, narrow: bytes) -> bool:
    """Whether every topic that `narrow` matches is one that `wide` matches."""
    if _of_other_tree(wide, narrow):
        return False
    return covers_levels(wide.split(b"/"), narrow.split(b"/"))


class Shape:
    """A filter that is held against many others: most that lie apart are told so by what comes before a wildcard."""

    __slots__ = ("_levels", "_literal")

    def __init__(self, topic_filter: bytes) -> None:
        self._levels: list[bytes] = topic_filter.split(b"/")
        self._literal: bytes = topic_filter.partition(b"+")[0].partition(b"#")[0]  # b"": it begins with a wildcard

    def overlaps(self, other: "Shape") -> bool:
        """Whether there is a topic that both match."""
        one, its = self._literal, other._literal
        if not (one.startswith(its) or its.startswith(one)):
            return False
        if (not one and its[:1] == b"$") or (not its and one[:1] == b"$"):
            return False  # MQTT-4.7.2-1
        return overlap_levels(self._levels, other._levels)


def covers_levels(wide: list[bytes], narrow: list[bytes]) -> bool:
    """The same for levels, without the rule on $."""
    if narrow[-1] == b"#" and wide[-1] != b"#":
        return False
    at = 0
    for level in wide:
        if level == b"#":
            return True  # also the level above it: `a/#` matches `a` (4.7.1.2)
        if at == len(narrow):
            return False
        here = narrow[at]
        if here == b"#" or level not in (b"+", here):
            return False
        at += 1
    return at == len(narrow)


def overlap_levels(one: list[bytes], other: list[bytes]) -> bool:
    """The same for levels, without the rule on $."""
    at = 0
    while at < len(one) and at < len(other):
        left, right = one[at], other[at]
        if left != right:
            if left == b"#" or right == b"#":
                return True
            if left != b"+" and right != b"+":
                return False
        at += 1
    # What is left of one of them may stand for no level at all.
    rest = one[at:] or other[at:]
    return not rest or rest == [b"#"]


def _of_other_tree(wide: bytes, narrow: bytes) -> bool:
    """Whether one begins with a wildcard, which does not match the topics of $ that the other names (MQTT-4.7.2-1)."""
    return wide[:1] in (b"+", b"#") and narrow[:1] == b"$"
