"""Compiled arithmetic and functions."""

from collections.abc import Callable
from typing import Any, Final

from gateway.events.event import Event
from gateway.events.sql.expressions import Expression, Value, is_number

_MAX_JOINED: Final = 1 << 20  # characters of a text that is made of others
_LARGEST: Final = 10**308  # whole number; larger ones are NULL


class Calculation(Expression):
    __slots__ = ("_calculate", "_left", "_right")

    def __init__(self, calculate: Callable[[Any, Any], Any], left: Expression, right: Expression) -> None:
        self._calculate = calculate
        self._left = left
        self._right = right

    def value(self, event: Event) -> Value:
        one, other = self._left.value(event), self._right.value(event)
        if not (is_number(one) and is_number(other)):
            return None
        try:
            found = self._calculate(one, other)
        except ArithmeticError:
            return None
        return None if isinstance(found, int) and not -_LARGEST < found < _LARGEST else found


class OfNumber(Expression):
    """A function of a number."""

    __slots__ = ("_calculate", "_inner")

    def __init__(self, calculate: Callable[[Any], Any], inner: Expression) -> None:
        self._calculate = calculate
        self._inner = inner

    def value(self, event: Event) -> Value:
        number = self._inner.value(event)
        if not is_number(number):
            return None
        try:
            return self._calculate(number)
        except (ArithmeticError, ValueError):
            return None


class OfText(Expression):
    """A function of a text."""

    __slots__ = ("_change", "_inner")

    def __init__(self, change: Callable[[str], Any], inner: Expression) -> None:
        self._change = change
        self._inner = inner

    def value(self, event: Event) -> Value:
        text = self._inner.value(event)
        if not isinstance(text, str):
            return None
        event.look_at(text)
        return self._change(text)


class Cast(Expression):
    __slots__ = ("_convert", "_inner")

    def __init__(self, convert: Callable[[Any], Any], inner: Expression) -> None:
        self._convert = convert
        self._inner = inner

    def value(self, event: Event) -> Value:
        found = self._inner.value(event)
        if not isinstance(found, str | int | float):
            return None
        try:
            return self._convert(found)
        except (ArithmeticError, ValueError):
            return None


class Joined(Expression):
    """CONCAT and ||."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Expression]) -> None:
        self._parts = parts

    def value(self, event: Event) -> Value:
        texts: list[str] = []
        size = 0
        for part in self._parts:
            text = as_text(part.value(event))
            if text is None:
                return None
            size += len(text)
            if size > _MAX_JOINED:
                return None
            event.look_at(text)
            texts.append(text)
        return "".join(texts)


class Coalesced(Expression):
    __slots__ = ("_parts",)

    def __init__(self, parts: list[Expression]) -> None:
        self._parts = parts

    def value(self, event: Event) -> Value:
        for part in self._parts:
            found = part.value(event)
            if found is not None:
                return found
        return None


class Substring(Expression):
    __slots__ = ("_begin", "_end", "_inner")

    def __init__(self, inner: Expression, begin: int, end: int | None) -> None:
        self._inner = inner
        self._begin = begin
        self._end = end

    def value(self, event: Event) -> Value:
        text = self._inner.value(event)
        if not isinstance(text, str):
            return None
        part = text[self._begin :] if self._end is None else text[self._begin : self._end]
        event.look_at(part)
        return part


def as_text(value: Value) -> str | None:
    """A text, a number or a truth value as a text; None for all else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else None
