"""Compiled expressions, which are evaluated for each event.

Logic has three values, as in SQL: a comparison with what is not there, or with another type, is NULL (None). The work
of an evaluation is bounded by the size of the statement. What depends on the event, and repeated evaluations, are
counted (`Event.spend`).
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from gateway.events.event import MISSING, Event
from matcher.selector.like import Pattern

LESS: Final = 0
AT_MOST: Final = 1
MORE: Final = 2
AT_LEAST: Final = 3

Value = Any  # a JSON value; None is NULL


class Expression(metaclass=ABCMeta):
    """An expression, or a part of one."""

    __slots__ = ()

    @abstractmethod
    def value(self, event: Event) -> Value:
        """Raises `EvaluationFailed` if the event is too large for it."""


# --- fields


class Constant(Expression):
    __slots__ = ("_value",)

    def __init__(self, value: Value) -> None:
        self._value = value

    def value(self, event: Event) -> Value:  # noqa: ARG002  the same for all
        return self._value


class Field(Expression):
    """A field of the event, see `Event.field`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def value(self, event: Event) -> Value:
        found = event.field(self._name)
        return None if found is MISSING else found


class Attribute(Expression):
    """An attribute of CloudEvents."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def value(self, event: Event) -> Value:
        return event.attributes.get(self._name)


class Member(Expression):
    """A member of the data, which are an object: `payload.t`."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def value(self, event: Event) -> Value:
        body = event.body
        return body.get(self._name) if isinstance(body, dict) else None


class Below(Expression):
    """A part of a value, by names and indexes."""

    __slots__ = ("_base", "_parts")

    def __init__(self, base: Expression, parts: Sequence[str | int]) -> None:
        self._base = base
        self._parts = list(parts)

    def value(self, event: Event) -> Value:
        value = self._base.value(event)
        for part in self._parts:
            if isinstance(value, dict) and isinstance(part, str):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part] if -len(value) <= part < len(value) else None
            else:
                return None
        return value


class Alias(Expression):
    """A result of SELECT that WHERE names."""

    __slots__ = ("_inner", "_work")

    def __init__(self, inner: Expression, work: int) -> None:
        """work: how many expressions it consists of."""
        self._inner = inner
        self._work = work

    def value(self, event: Event) -> Value:
        event.spend(self._work)
        return self._inner.value(event)


class TopicLevel(Expression):
    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        """index: from 0 on."""
        self._index = index

    def value(self, event: Event) -> Value:
        levels = event.topic.split(b"/", self._index + 1)
        return levels[self._index].decode() if self._index < len(levels) else None


# --- logic and comparisons


class And(Expression):
    __slots__ = ("_left", "_right")

    def __init__(self, left: Expression, right: Expression) -> None:
        self._left = left
        self._right = right

    def value(self, event: Event) -> Value:
        one = self._left.value(event)
        if one is False:
            return False
        other = self._right.value(event)
        if other is False:
            return False
        return True if one is True and other is True else None


class Or(Expression):
    __slots__ = ("_left", "_right")

    def __init__(self, left: Expression, right: Expression) -> None:
        self._left = left
        self._right = right

    def value(self, event: Event) -> Value:
        one = self._left.value(event)
        if one is True:
            return True
        other = self._right.value(event)
        if other is True:
            return True
        return False if one is False and other is False else None


class Not(Expression):
    __slots__ = ("_inner",)

    def __init__(self, inner: Expression) -> None:
        self._inner = inner

    def value(self, event: Event) -> Value:
        found = self._inner.value(event)
        return not found if isinstance(found, bool) else None


class Comparison(Expression):
    __slots__ = ("_left", "_operator", "_right")

    def __init__(self, operator: int, left: Expression, right: Expression) -> None:
        """operator: `LESS`, `AT_MOST`, `MORE` or `AT_LEAST`."""
        self._operator = operator
        self._left = left
        self._right = right

    def value(self, event: Event) -> Value:
        one = self._left.value(event)
        other = self._right.value(event)
        if not _are_comparable(one, other):
            return None
        if self._operator == MORE:
            return one > other
        if self._operator == LESS:
            return one < other
        return one >= other if self._operator == AT_LEAST else one <= other


class Equality(Expression):
    __slots__ = ("_left", "_right", "_wanted")

    def __init__(self, left: Expression, right: Expression, wanted: bool) -> None:
        """wanted: whether they have to be equal, or have to differ."""
        self._left = left
        self._right = right
        self._wanted = wanted

    def value(self, event: Event) -> Value:
        found = _equal(event, self._left.value(event), self._right.value(event))
        return None if found is None else found is self._wanted


class Is(Expression):
    """IS NULL, IS TRUE, IS FALSE."""

    __slots__ = ("_inner", "_wanted")

    def __init__(self, inner: Expression, wanted: bool | None) -> None:
        self._inner = inner
        self._wanted = wanted

    def value(self, event: Event) -> Value:
        return self._inner.value(event) is self._wanted


class In(Expression):
    __slots__ = ("_choices", "_inner")

    def __init__(self, inner: Expression, choices: list[Expression]) -> None:
        self._inner = inner
        self._choices = choices

    def value(self, event: Event) -> Value:
        one = self._inner.value(event)
        result: bool | None = False
        for choice in self._choices:
            found = _equal(event, one, choice.value(event))
            if found is True:
                return True
            if found is None:
                result = None
        return result


class Between(Expression):
    __slots__ = ("_high", "_inner", "_low")

    def __init__(self, inner: Expression, low: Expression, high: Expression) -> None:
        self._inner = inner
        self._low = low
        self._high = high

    def value(self, event: Event) -> Value:
        one, low, high = self._inner.value(event), self._low.value(event), self._high.value(event)
        if not (_are_comparable(one, low) and _are_comparable(one, high)):
            return None
        return bool(low <= one <= high)


class Like(Expression):
    __slots__ = ("_inner", "_pattern", "_wanted")

    def __init__(self, inner: Expression, pattern: Pattern, wanted: bool) -> None:
        """wanted: False for NOT LIKE."""
        self._inner = inner
        self._pattern = pattern
        self._wanted = wanted

    def value(self, event: Event) -> Value:
        text = self._inner.value(event)
        if not isinstance(text, str):
            return None
        event.look_at(text, self._pattern.work)
        return self._pattern.matches(text) is self._wanted


class Case(Expression):
    __slots__ = ("_branches", "_default", "_subject")

    def __init__(
        self, subject: Expression | None, branches: list[tuple[Expression, Expression]], default: Expression | None
    ) -> None:
        self._subject = subject
        self._branches = branches
        self._default = default

    def value(self, event: Event) -> Value:
        subject = None if self._subject is None else self._subject.value(event)
        for condition, result in self._branches:
            found = condition.value(event)
            if (found is True) if self._subject is None else (_equal(event, subject, found) is True):
                return result.value(event)
        return None if self._default is None else self._default.value(event)


def is_number(value: Value) -> bool:
    """Whether a value is a number, and no truth value."""
    return type(value) is float or type(value) is int


def _are_comparable(one: Value, other: Value) -> bool:
    return (is_number(one) and is_number(other)) or (isinstance(one, str) and isinstance(other, str))


def _equal(event: Event, one: Value, other: Value) -> bool | None:
    if one is None or other is None:
        return None
    if isinstance(one, dict | list):
        event.spend_whole()
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)
