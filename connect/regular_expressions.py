"""Regular expressions of users. RE2 matches them: the time grows with the text and not faster, whatever they are.

A backtracking matcher, as Python's `re` is, takes exponential time for an expression such as `(a+)+b`, and would hold
up all tasks of the worker. RE2 has no backreferences, and nothing that looks ahead or behind.
"""

from collections.abc import Iterable
from typing import Any, Final

import re2

_MAX_LENGTH: Final = 1_000  # characters
# RE2 may look at each instruction of its program for each character, and copies the bounds of all groups: (a?){100}
# has 400 instructions, and 90 of them took 24 s for a topic of 9,000 bytes.
_MAX_INSTRUCTIONS: Final = 2_500
_MAX_GROUPS: Final = 20
_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False


class RegularExpression:
    """One expression, which has to match the whole of a text."""

    __slots__ = ("_compiled",)

    def __init__(self, expression: str) -> None:
        """Raises ValueError."""
        if len(expression) > _MAX_LENGTH:
            raise ValueError(f"a regular expression has at most {_MAX_LENGTH} characters, not {len(expression)}")
        try:
            self._compiled: Any = re2.compile(expression, _OPTIONS)
        except re2.error as error:
            raise ValueError(f"{expression[:60]!r} is not a regular expression of RE2: {_reason(error)}") from error
        size, groups = self._compiled.programsize, self._compiled.groups
        if size > _MAX_INSTRUCTIONS:
            raise ValueError(
                f"{expression[:60]!r} repeats too much: {size} instructions, not {_MAX_INSTRUCTIONS} at most"
            )
        if groups > _MAX_GROUPS:
            raise ValueError(f"{expression[:60]!r} has {groups} groups, not {_MAX_GROUPS} at most")

    def matches(self, text: str) -> bool:
        """Whether it matches."""
        return self._compiled.fullmatch(text) is not None

    def groups_of(self, text: str) -> tuple[str, ...] | None:
        """The whole text, then what each group matched, empty for one that did not take part. None: no match."""
        match = self._compiled.fullmatch(text)
        return None if match is None else (text, *match.groups(""))

    def group_number(self, name: str) -> int:
        """The place of a group in `groups_of`, by its number or its name. Raises ValueError."""
        number = int(name) if name.isdecimal() else self._compiled.groupindex.get(name, -1)
        if not 0 <= number <= self._compiled.groups:
            raise ValueError(f"there is no group {name}")
        return int(number)


def problem_of(expressions: Iterable[str]) -> str | None:
    """What is wrong with the first expression that is not valid; None: nothing."""
    for each in expressions:
        try:
            RegularExpression(each)
        except ValueError as error:
            return str(error)
    return None


def _reason(error: Exception) -> str:
    reason = error.args[0]
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
