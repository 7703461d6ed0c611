"""The tokens of a condition.

Keywords are case-insensitive, names are not. A name begins with a letter, `_` or `$` and continues with letters,
digits, `_`, `$`, `.` and `-`. In double quotes, a name may be any text. A text is in single quotes. A quote inside is
doubled. Numbers are decimal or hexadecimal (`0x…`), or have a fraction or an exponent.
"""

import re
from enum import IntEnum
from typing import Final, NamedTuple

from matcher.selector.errors import SelectorError

KEYWORDS: Final = frozenset(
    [
        *("AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "LIKE", "ESCAPE", "TRUE", "FALSE"),
        *("CONTAINS", "STARTSWITH", "ENDSWITH"),
    ]
)

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:0[xX][0-9a-fA-F]+|[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)[lL]?)
    | (?P<word>[A-Za-z_$][A-Za-z0-9_$.\-]*)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<mark><>|<=|>=|=|<|>|\(|\)|,|\+|-)
    """,
    re.VERBOSE,
)
_MAX_DIGITS: Final = 64  # of a number


class Token(IntEnum):
    """The kinds of tokens."""

    KEYWORD = 1
    NAME = 2
    TEXT = 3
    NUMBER = 4
    MARK = 5
    END = 6


class Word(NamedTuple):
    """A token of the condition, with the column at which it begins, counted from 1."""

    token: Token
    text: str  # of a keyword in capitals; of a text or a quoted name without the quotes
    column: int
    number: int | float = 0

    @property
    def shown(self) -> str:
        """The token as error messages show it."""
        if self.token is Token.END:
            return "the end"
        if self.token is Token.TEXT:
            return f"the text {self.text[:40]!r}"
        return self.text[:40]


def words_of(text: str) -> list[Word]:
    """The tokens of a condition, and one for its end. Raises `SelectorError`."""
    words: list[Word] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _unknown(text, at)
        kind = found.lastgroup
        if kind != "space":
            words.append(_word(kind or "", found.group(), at + 1, text))
        at = found.end()
    words.append(Word(Token.END, "", len(text) + 1))
    return words


def _word(kind: str, raw: str, column: int, text: str) -> Word:
    if kind == "mark":
        return Word(Token.MARK, raw, column)
    if kind == "text":
        return Word(Token.TEXT, raw[1:-1].replace("''", "'"), column)
    if kind == "quoted":
        name = raw[1:-1].replace('""', '"')
        if not name:
            raise SelectorError("a name is not empty", column, text)
        return Word(Token.NAME, name, column)
    if kind == "number":
        return Word(Token.NUMBER, raw, column, _number(raw, column, text))
    upper = raw.upper()
    return Word(Token.KEYWORD, upper, column) if upper in KEYWORDS else Word(Token.NAME, raw, column)


def _number(raw: str, column: int, text: str) -> int | float:
    digits = raw.rstrip("lL")
    if len(digits) > _MAX_DIGITS:
        raise SelectorError(f"a number has at most {_MAX_DIGITS} digits", column, text)
    if digits[:2] in {"0x", "0X"}:
        return int(digits, 16)
    return int(digits) if digits.isdigit() else float(digits)


def _unknown(text: str, at: int) -> SelectorError:
    mark = text[at]
    if mark in "'\"":
        return SelectorError(f"the quote {mark} is not closed", at + 1, text)
    if text.startswith("!=", at):
        return SelectorError("unequal is written <>", at + 1, text)
    return SelectorError(f"{mark!r} does not belong in a condition", at + 1, text)
