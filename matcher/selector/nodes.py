"""The nodes of a compiled condition, which test the properties of a message.

The logic has three values, as in SQL: true, false and unknown (None). A comparison with a property that the message
does not have is unknown. A message is selected if the whole condition is true.

Properties are texts. A comparison with a number parses the property as a number, and one with TRUE or FALSE as a truth
value. If that fails, the result is unknown.
"""

import re
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from matcher.selector.like import Pattern

EQUAL: Final = 0
UNEQUAL: Final = 1
LESS: Final = 2
AT_MOST: Final = 3
MORE: Final = 4
AT_LEAST: Final = 5
MIRRORED: Final = (EQUAL, UNEQUAL, MORE, AT_LEAST, LESS, AT_MOST)  # each operator with its sides swapped

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?P<fraction>\.[0-9]*)?|(?P<bare>\.[0-9]+))(?P<exponent>[eE][+-]?[0-9]+)?")
_MAX_NUMBER: Final = 64  # a longer property is no number


class SelectorNode(metaclass=ABCMeta):
    """A condition, or a part of one."""

    __slots__ = ()

    @abstractmethod
    def test(self, properties: Mapping[str, str]) -> bool | None:
        """True, False, or None: unknown."""


class Fixed(SelectorNode):
    """TRUE, FALSE, or the result of a comparison of two literals."""

    __slots__ = ("_value",)

    def __init__(self, value: bool) -> None:
        self._value = value

    def test(self, properties: Mapping[str, str]) -> bool | None:  # noqa: ARG002  the same for all
        return self._value


class All(SelectorNode):
    """AND: false if one is, else unknown if one is."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: list[SelectorNode]) -> None:
        self._nodes = nodes

    def test(self, properties: Mapping[str, str]) -> bool | None:
        result: bool | None = True
        for node in self._nodes:
            value = node.test(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result


class Any(SelectorNode):
    """OR: true if one is, else unknown if one is."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: list[SelectorNode]) -> None:
        self._nodes = nodes

    def test(self, properties: Mapping[str, str]) -> bool | None:
        result: bool | None = False
        for node in self._nodes:
            value = node.test(properties)
            if value is None:
                result = None
            elif value:
                return True
        return result


class Not(SelectorNode):
    """NOT: unknown stays unknown."""

    __slots__ = ("_node",)

    def __init__(self, node: SelectorNode) -> None:
        self._node = node

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value = self._node.test(properties)
        return None if value is None else not value


class IsNull(SelectorNode):
    """IS NULL: whether the message does not have the property. Never unknown."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def test(self, properties: Mapping[str, str]) -> bool | None:
        return self._name not in properties


class Flag(SelectorNode):
    """A property as a condition: its value is `true` or `false`, in any case."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def test(self, properties: Mapping[str, str]) -> bool | None:
        return flag_of(properties.get(self._name))


class CompareText(SelectorNode):
    """Compare a property with a text, by code points."""

    __slots__ = ("_name", "_relation", "_text")

    def __init__(self, name: str, relation: int, text: str) -> None:
        self._name = name
        self._relation = relation
        self._text = text

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value = properties.get(self._name)
        return None if value is None else relate_texts(value, self._relation, self._text)


class CompareNumber(SelectorNode):
    """Compare a property, parsed as a number, with a number."""

    __slots__ = ("_name", "_number", "_relation")

    def __init__(self, name: str, relation: int, number: int | float) -> None:
        self._name = name
        self._relation = relation
        self._number = number

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value = number_of(properties.get(self._name))
        return None if value is None else relate_numbers(value, self._relation, self._number)


class CompareFlag(SelectorNode):
    """Whether a property, parsed as a truth value, equals TRUE or FALSE, or differs."""

    __slots__ = ("_name", "_wanted")

    def __init__(self, name: str, wanted: bool) -> None:
        self._name = name
        self._wanted = wanted

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value = flag_of(properties.get(self._name))
        return None if value is None else value == self._wanted


class CompareNames(SelectorNode):
    """Compare two properties as texts."""

    __slots__ = ("_name", "_other", "_relation")

    def __init__(self, name: str, relation: int, other: str) -> None:
        self._name = name
        self._relation = relation
        self._other = other

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value, other = properties.get(self._name), properties.get(self._other)
        if value is None or other is None:
            return None
        return relate_texts(value, self._relation, other)


class InTexts(SelectorNode):
    """IN: whether a property is one of several texts."""

    __slots__ = ("_name", "_texts")

    def __init__(self, name: str, texts: Sequence[str]) -> None:
        self._name = name
        self._texts = frozenset(texts)

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value = properties.get(self._name)
        return None if value is None else value in self._texts


class Like(SelectorNode):
    """LIKE: whether a property matches a pattern."""

    __slots__ = ("_name", "_pattern")

    def __init__(self, name: str, pattern: Pattern) -> None:
        self._name = name
        self._pattern = pattern

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value = properties.get(self._name)
        return None if value is None else self._pattern.matches(value)


class Contains(SelectorNode):
    """CONTAINS, STARTSWITH and ENDSWITH."""

    __slots__ = ("_name", "_text", "_where")

    def __init__(self, name: str, where: str, text: str) -> None:
        self._name = name
        self._where = where  # the keyword
        self._text = text

    def test(self, properties: Mapping[str, str]) -> bool | None:
        value = properties.get(self._name)
        if value is None:
            return None
        if self._where == "CONTAINS":
            return self._text in value
        return value.startswith(self._text) if self._where == "STARTSWITH" else value.endswith(self._text)


def number_of(text: str | None) -> int | float | None:
    """Parse a property as a number; None if it is none."""
    if text is None or len(text) > _MAX_NUMBER:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    return int(text) if found.lastgroup is None else float(text)


def flag_of(text: str | None) -> bool | None:
    """Parse a property as a truth value; None if it is none."""
    if text is None:
        return None
    lower = text.lower()
    return None if lower not in {"true", "false"} else lower == "true"


def relate_texts(left: str, relation: int, right: str) -> bool:
    """Apply a comparison operator to two texts."""
    if relation == EQUAL:
        return left == right
    if relation == UNEQUAL:
        return left != right
    if relation == LESS:
        return left < right
    if relation == AT_MOST:
        return left <= right
    return left > right if relation == MORE else left >= right


def relate_numbers(left: int | float, relation: int, right: int | float) -> bool:
    """Apply a comparison operator to two numbers."""
    if relation == EQUAL:
        return left == right
    if relation == UNEQUAL:
        return left != right
    if relation == LESS:
        return left < right
    if relation == AT_MOST:
        return left <= right
    return left > right if relation == MORE else left >= right
