"""Parses conditions in the SQL-92 syntax of RocketMQ consumers. The grammar:

condition  = conjunction { OR conjunction }
conjunction = negation { AND negation }
negation   = NOT negation | "(" condition ")" | predicate
predicate  = value ( "=" | "<>" | "<" | "<=" | ">" | ">=" ) value
           | value [ NOT ] BETWEEN value AND value
           | value [ NOT ] IN "(" literal { "," literal } ")"
           | name [ NOT ] LIKE text [ ESCAPE text ]
           | name [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) text
           | name IS [ NOT ] NULL
           | name | TRUE | FALSE
value      = name | literal
literal    = text | [ "+" | "-" ] number | TRUE | FALSE
"""

from typing import Final

from matcher.selector.errors import SelectorError
from matcher.selector.like import pattern_of
from matcher.selector.nodes import (
    AT_LEAST,
    AT_MOST,
    EQUAL,
    LESS,
    MIRRORED,
    MORE,
    UNEQUAL,
    All,
    Any,
    CompareFlag,
    CompareNames,
    CompareNumber,
    CompareText,
    Contains,
    Fixed,
    Flag,
    InTexts,
    IsNull,
    Like,
    Not,
    SelectorNode,
    relate_numbers,
    relate_texts,
)
from matcher.selector.words import Token, Word, words_of

MAX_SQL: Final = 4_096  # characters
MAX_DEPTH: Final = 32  # of parentheses and NOTs within each other

_RELATIONS: Final = {"=": EQUAL, "<>": UNEQUAL, "<": LESS, "<=": AT_MOST, ">": MORE, ">=": AT_LEAST}
_PARTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def parse_sql(text: str) -> tuple[SelectorNode, frozenset[str]]:
    """Parse a condition. Returns the node that tests it, and the names of the properties that it uses.

    Raises `SelectorError`.
    """
    if len(text) > MAX_SQL:
        raise SelectorError(f"a condition has at most {MAX_SQL} characters, not {len(text)}", MAX_SQL + 1, text)
    parser = _Parser(text)
    return parser.whole(), frozenset(parser.names)


class _Value:
    """An operand: a name or a literal."""

    __slots__ = ("flag", "kind", "number", "text", "word")

    def __init__(self, kind: Token, word: Word, text: str = "", number: int | float = 0, flag: bool = False) -> None:
        self.kind = kind  # NAME, TEXT, NUMBER, or KEYWORD: a truth value
        self.word = word  # where it begins
        self.text = text
        self.number = number
        self.flag = flag


class _Parser:
    """Parses the words of one condition."""

    __slots__ = ("_at", "_depth", "_text", "_words", "names")

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = words_of(text)
        self._at = 0
        self._depth = 0
        self.names: set[str] = set()

    def whole(self) -> SelectorNode:
        node = self._condition()
        if self._word.token is not Token.END:
            raise self._expected("AND, OR or the end")
        return node

    @property
    def _word(self) -> Word:
        return self._words[self._at]

    def _condition(self) -> SelectorNode:
        nodes = [self._conjunction()]
        while self._takes("OR"):
            nodes.append(self._conjunction())
        return nodes[0] if len(nodes) == 1 else Any(nodes)

    def _conjunction(self) -> SelectorNode:
        nodes = [self._negation()]
        while self._takes("AND"):
            nodes.append(self._negation())
        return nodes[0] if len(nodes) == 1 else All(nodes)

    def _negation(self) -> SelectorNode:
        if self._depth == MAX_DEPTH:
            raise SelectorError(f"more than {MAX_DEPTH} levels of parentheses and NOTs", self._word.column, self._text)
        self._depth += 1
        try:
            if self._takes("NOT"):
                return Not(self._negation())
            if self._takes("("):
                node = self._condition()
                self._require(")")
                return node
        finally:
            self._depth -= 1
        return self._predicate()

    def _predicate(self) -> SelectorNode:
        value = self._value("a condition")
        word = self._word
        relation = _RELATIONS.get(word.text) if word.token is Token.MARK else None
        if relation is not None:
            self._at += 1
            return self._compared(value, relation, self._value("a value"), word)
        if self._takes("IS"):
            is_not = self._takes("NOT")
            self._require("NULL")
            return _negated(IsNull(self._name(value, "IS")), is_not)
        is_not = self._takes("NOT")
        if self._takes("BETWEEN"):
            return _negated(self._between(value), is_not)
        if self._takes("IN"):
            return _negated(self._in(value), is_not)
        if self._takes("LIKE"):
            return _negated(self._like(value), is_not)
        for where in _PARTS:
            if self._takes(where):
                return _negated(Contains(self._name(value, where), where, self._literal_text(where)), is_not)
        if is_not:
            raise self._expected("BETWEEN, IN, LIKE, CONTAINS, STARTSWITH or ENDSWITH")
        if value.kind is Token.NAME:
            return Flag(value.text)
        if value.kind is Token.KEYWORD:
            return Fixed(value.flag)
        raise self._expected("a comparison")

    def _between(self, value: _Value) -> SelectorNode:
        low_word = self._word
        low = self._value("a value")
        self._require("AND")
        high_word = self._word
        high = self._value("a value")
        return All([self._compared(value, AT_LEAST, low, low_word), self._compared(value, AT_MOST, high, high_word)])

    def _in(self, value: _Value) -> SelectorNode:
        self._require("(")
        members: list[_Value] = []
        while True:
            member = self._value("a text or a number")
            if member.kind is Token.NAME:
                raise SelectorError("a list has texts and numbers, no names", member.word.column, self._text)
            members.append(member)
            if not self._takes(","):
                break
        self._require(")")
        if value.kind is Token.NAME and all(member.kind is Token.TEXT for member in members):
            return InTexts(value.text, [member.text for member in members])
        return Any([self._compared(value, EQUAL, member, member.word) for member in members])

    def _like(self, value: _Value) -> SelectorNode:
        name = self._name(value, "LIKE")
        at = self._word
        pattern = self._literal_text("LIKE")
        escape: str | None = None
        if self._takes("ESCAPE"):
            at = self._word
            escape = self._literal_text("ESCAPE")
            if len(escape) != 1:
                raise SelectorError("an escape is one character", at.column, self._text)
        try:
            return Like(name, pattern_of(pattern, escape))
        except ValueError as error:
            raise SelectorError(str(error), at.column, self._text) from error

    def _compared(self, left: _Value, relation: int, right: _Value, at: Word) -> SelectorNode:
        """Return the node of a comparison. An error points at the word `at`."""
        if left.kind is not Token.NAME and right.kind is Token.NAME:
            return self._compared(right, MIRRORED[relation], left, at)
        if right.kind is Token.KEYWORD and relation not in {EQUAL, UNEQUAL}:
            raise SelectorError("truth values are equal or not, neither is more", at.column, self._text)
        if left.kind is Token.NAME:
            return _named(left.text, relation, right)
        if left.kind is not right.kind:
            raise SelectorError("a text, a number and a truth value do not compare", at.column, self._text)
        if left.kind is Token.TEXT:
            return Fixed(relate_texts(left.text, relation, right.text))
        if left.kind is Token.NUMBER:
            return Fixed(relate_numbers(left.number, relation, right.number))
        return Fixed((left.flag == right.flag) == (relation == EQUAL))

    def _value(self, wanted: str) -> _Value:
        word = self._word
        if word.token is Token.NAME:
            self._at += 1
            self.names.add(word.text)
            return _Value(Token.NAME, word, text=word.text)
        if word.token is Token.TEXT:
            self._at += 1
            return _Value(Token.TEXT, word, text=word.text)
        for truth in ("TRUE", "FALSE"):
            if self._takes(truth):
                return _Value(Token.KEYWORD, word, flag=truth == "TRUE")
        sign = -1 if self._takes("-") else 1
        if sign == 1:
            self._takes("+")
        if self._word.token is Token.NUMBER:
            number = self._word.number
            self._at += 1
            return _Value(Token.NUMBER, word, number=sign * number)
        if self._word.text == "NULL" and self._word.token is Token.KEYWORD:
            raise SelectorError("nothing compares with NULL: ask IS NULL", self._word.column, self._text)
        raise self._expected(wanted if self._word is word else "a number")

    def _name(self, value: _Value, keyword: str) -> str:
        if value.kind is not Token.NAME:
            raise SelectorError(f"in front of {keyword} stands the name of a property", value.word.column, self._text)
        return value.text

    def _literal_text(self, keyword: str) -> str:
        word = self._word
        if word.token is not Token.TEXT:
            raise self._expected(f"a text in single quotes behind {keyword}")
        self._at += 1
        return word.text

    def _takes(self, text: str) -> bool:
        """Skip the given keyword or mark if it is the next word. Returns whether it was."""
        word = self._word
        if word.text != text or word.token not in {Token.KEYWORD, Token.MARK}:
            return False
        self._at += 1
        return True

    def _require(self, text: str) -> None:
        if not self._takes(text):
            raise self._expected(text)

    def _expected(self, wanted: str) -> SelectorError:
        word = self._word
        return SelectorError(f"expected {wanted}, found {word.shown}", word.column, self._text)


def _named(name: str, relation: int, right: _Value) -> SelectorNode:
    if right.kind is Token.NAME:
        return CompareNames(name, relation, right.text)
    if right.kind is Token.TEXT:
        return CompareText(name, relation, right.text)
    if right.kind is Token.NUMBER:
        return CompareNumber(name, relation, right.number)
    return CompareFlag(name, right.flag == (relation == EQUAL))


def _negated(node: SelectorNode, is_not: bool) -> SelectorNode:
    return Not(node) if is_not else node
