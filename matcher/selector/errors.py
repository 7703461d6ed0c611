"""What is wrong with a condition, and where."""

from typing import Final

_AROUND: Final = 40  # characters of the text that are shown on each side of the fault


class SelectorError(ValueError):
    """The text is no condition. `column` counts characters from 1 and points at the token that does not fit."""

    def __init__(self, message: str, column: int, text: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.text = text

    def __str__(self) -> str:
        """The message, and the part of the text around the fault with a mark below it."""
        if not self.text:
            return f"column {self.column}: {self.message}"
        at = self.column - 1
        first = max(at - _AROUND, 0)
        shown = "".join(mark if mark.isprintable() else " " for mark in self.text[first : at + _AROUND])
        return f"column {self.column}: {self.message}\n  {shown}\n  {' ' * (at - first)}^"
