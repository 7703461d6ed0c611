"""Patterns of LIKE: `%` stands for any text, `_` for one character.

A pattern is the runs between its `%`. Each is looked for from where the one before ended, which finds a match if
there is one; so the work grows with text times pattern and never faster, whatever the pattern.
"""


class Pattern:
    """A compiled pattern. A run is the characters it is made of, None for any one."""

    __slots__ = ("_is_open", "_runs")

    def __init__(self, runs: list[list[str | None]]) -> None:
        self._is_open = len(runs) > 1  # it has a `%`
        self._runs = runs

    def matches(self, text: str) -> bool:
        """Whether all of the text fits."""
        first, last = self._runs[0], self._runs[-1]
        if not self._is_open:
            return len(text) == len(first) and _fits(first, text, 0)
        end = len(text) - len(last)
        if len(first) > end or not _fits(first, text, 0) or not _fits(last, text, end):
            return False
        at = len(first)
        for run in self._runs[1:-1]:
            while at + len(run) <= end and not _fits(run, text, at):
                at += 1
            at += len(run)
            if at > end:
                return False
        return True


def pattern_of(text: str, escape: str | None) -> Pattern:
    """Compile a pattern. Raises ValueError where `escape` is not followed by what it may make a plain character."""
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
    # Of neighbours `%%` the empty run between them fits everywhere: it need not be looked for.
    middle = [run for run in runs[1:-1] if run]
    return Pattern([runs[0], *middle, runs[-1]] if len(runs) > 1 else runs)


def _fits(run: list[str | None], text: str, at: int) -> bool:
    """Whether a run fits at an index of a text that is long enough."""
    for mark in run:
        if mark is not None and text[at] != mark:
            return False
        at += 1
    return True
