"""The error of an invalid condition, with its place."""

from typing import Final

_AROUND: Final = 40  # characters shown on each side of the error


class SelectorError(ValueError):
    """The condition is invalid. `column` is that of the offending token, counted from 1."""

    def __init__(self, message: str, column: int, text: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.text = text

    def __str__(self) -> str:
        """The message, and the text around the error with a mark below it."""
        if not self.text:
            return f"column {self.column}: {self.message}"
        at = self.column - 1
        first = max(at - _AROUND, 0)
        shown = "".join(mark if mark.isprintable() else " " for mark in self.text[first : at + _AROUND])
        return f"column {self.column}: {self.message}\n  {shown}\n  {' ' * (at - first)}^"
