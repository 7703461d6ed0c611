"""Patterns of LIKE: `%` stands for any text, `_` for one character.

A pattern consists of runs separated by `%`. Each run is searched after the end of the previous one, which finds a match
if there is one. So the cost is at most proportional to the product of the lengths of text and pattern.
"""

import re
from typing import Final

MAX_PATTERN: Final = 256  # characters


class LiteralRun:
    """The characters between two `%`: a text, or a regular expression of the same length if it has a `_`."""

    __slots__ = ("_expression", "_text", "size", "work")

    def __init__(self, marks: list[str | None]) -> None:
        self.size = len(marks)
        self._text = "".join([mark for mark in marks if mark is not None])
        self._expression: re.Pattern[str] | None = None
        self.work = 1  # for a character of the text, at most
        if None in marks:
            parts = ["." if mark is None else re.escape(mark) for mark in marks]
            self._expression = re.compile("".join(parts), re.DOTALL)
            self.work = self.size

    def fits(self, text: str, at: int) -> bool:
        """Whether the run is at an index of the text."""
        if self._expression is None:
            return text.startswith(self._text, at)
        return self._expression.match(text, at) is not None

    def find(self, text: str, at: int, end: int) -> int:
        """The first index of the run within [at, end); -1 if there is none."""
        if self._expression is None:
            return text.find(self._text, at, end)
        found = self._expression.search(text, at, end)
        return -1 if found is None else found.start()


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_is_open", "_runs", "work")

    def __init__(self, runs: list[LiteralRun]) -> None:
        self._is_open = len(runs) > 1  # it has a `%`
        self._runs = runs
        self.work = max(run.work for run in runs)  # for a character of a text that it looks at, at most

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the whole text."""
        first, last = self._runs[0], self._runs[-1]
        if not self._is_open:
            return len(text) == first.size and first.fits(text, 0)
        end = len(text) - last.size
        if first.size > end or not first.fits(text, 0) or not last.fits(text, end):
            return False
        at = first.size
        for run in self._runs[1:-1]:
            at = run.find(text, at, end)
            if at < 0:
                return False
            at += run.size
        return True


def pattern_of(text: str, escape: str | None) -> Pattern:
    """Compile a pattern. Raises ValueError if it is too long, or if `escape` is not followed by `%`, `_` or itself."""
    if len(text) > MAX_PATTERN:
        raise ValueError(f"a pattern has at most {MAX_PATTERN} characters, not {len(text)}")
    runs: list[list[str | None]] = [[]]
    at = 0
    while at < len(text):
        mark = text[at]
        if mark == escape:
            at += 1
            if at == len(text) or (text[at] not in "%_" and text[at] != escape):
                raise ValueError(f"behind the escape character {escape!r} comes %, _ or itself")
            runs[-1].append(text[at])
        elif mark == "%":
            runs.append([])
        else:
            runs[-1].append(None if mark == "_" else mark)
        at += 1
    # The empty run in `%%` matches everywhere, so it is left out.
    middle = [run for run in runs[1:-1] if run]
    return Pattern([LiteralRun(run) for run in ([runs[0], *middle, runs[-1]] if len(runs) > 1 else runs)])
