"""Reads a statement: which tokens and which parts of SELECT there may be, and its topic filters."""

from collections.abc import Sequence
from typing import Final

from sqlglot import Token, TokenType, exp, parse, tokenize
from sqlglot.errors import SqlglotError

from gateway.events.errors import InvalidRule

MAX_SQL: Final = 8192  # characters
FIELDS: Final = (
    *("id", "source", "type", "subject", "time", "datacontenttype", "dataschema"),
    *("topic", "client", "qos", "retain"),
)
_FUNCTIONS: Final = frozenset(
    (
        *("ABS", "CAST", "CEIL", "COALESCE", "CONCAT", "FLOOR", "LENGTH", "LOWER", "ROUND", "SUBSTRING", "TRIM"),
        *("UPPER", "TOPIC_LEVEL"),
    )
)
# What may be in front of parentheses that are not those of a function.
_BEFORE_PARENTHESES: Final = frozenset(
    (
        *(TokenType.L_PAREN, TokenType.COMMA, TokenType.SELECT, TokenType.FROM, TokenType.WHERE, TokenType.ALIAS),
        *(TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.IN, TokenType.BETWEEN, TokenType.LIKE),
        *(TokenType.ESCAPE, TokenType.CASE, TokenType.WHEN, TokenType.THEN, TokenType.ELSE, TokenType.SEMICOLON),
        *(TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE),
        *(TokenType.PLUS, TokenType.DASH, TokenType.STAR, TokenType.SLASH, TokenType.MOD, TokenType.DPIPE),
    )
)
_KNOWN_TOKENS: Final = _BEFORE_PARENTHESES | frozenset(
    (
        *(TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER, TokenType.DOT, TokenType.R_PAREN),
        *(TokenType.R_BRACKET, TokenType.IS, TokenType.NULL, TokenType.TRUE, TokenType.FALSE, TokenType.END),
    )
)
_AFTER_NAMES: Final = (TokenType.R_PAREN, TokenType.COMMA, TokenType.FROM)
_MAX_FOREIGN: Final = 6  # words of other dialects in a statement, which is refused with a better reason then


def parse_select(text: str) -> exp.Select:
    """Raises `InvalidRule`."""
    if len(text) > MAX_SQL:
        raise InvalidRule(f"sql: a statement has at most {MAX_SQL} characters")
    try:
        _check_tokens(tokenize(text))
        statements = parse(text)
    except (SqlglotError, RecursionError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidRule(f"sql: {str(error).splitlines()[0] if str(error) else 'too deep'}") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Select):
        raise InvalidRule("sql: one SELECT is expected")
    select = statements[0]
    known = {"kind", "expressions", "from_", "joins", "where"}
    for name, part in select.args.items():
        if part and name not in known:
            raise InvalidRule(
                f"sql: {name.rstrip('_').upper()} is not part of this dialect: SELECT, FROM and WHERE are"
            )
    return select


def _check_tokens(tokens: Sequence[Token]) -> None:
    """Refuse what is not of this dialect and would take sqlglot long. It tries several readings of what is in brackets
    behind the name of a type, and does so again for each that is in them: 20 of them would take minutes. Raises
    `InvalidRule`."""
    foreign = 0
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else None
        if token.token_type is TokenType.L_BRACKET:
            inner = [each.token_type for each in tokens[number + 1 : number + 4]]
            if inner[:1] == [TokenType.DASH]:
                del inner[0]
            if inner[:2] != [TokenType.NUMBER, TokenType.R_BRACKET]:
                raise InvalidRule("sql: a number of an element is in brackets, such as payload.a[0]")
        elif token.token_type is TokenType.L_PAREN and before is not None:
            if before.token_type not in _BEFORE_PARENTHESES and before.text.upper() not in _FUNCTIONS:
                name = before.text[:100]
                text = f"sql: {name}( is not part of this dialect: there is no function {name} in docs/events.md"
                raise InvalidRule(text)
        elif token.token_type not in _KNOWN_TOKENS and token.text.lower() not in FIELDS:
            after = tokens[number + 1].token_type if number + 1 < len(tokens) else None
            is_name = before is not None and (
                before.token_type is TokenType.DOT or (before.token_type is TokenType.ALIAS and after in _AFTER_NAMES)
            )
            foreign += not is_name
            if foreign > _MAX_FOREIGN:
                raise InvalidRule(f"sql: {token.text[:100]} is not part of this dialect")


def filters_of(select: exp.Select) -> list[bytes]:
    """The topic filters of FROM. Raises `InvalidRule`."""
    source = select.args.get("from_")
    if source is None:
        raise InvalidRule('sql: FROM names topic filters, such as FROM "fleet/+/temp"')
    joins = select.args.get("joins") or []
    filters: list[bytes] = []
    for table in [source.this, *[join.this for join in joins]]:
        if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier) or table.args.get("db"):
            raise InvalidRule('sql: FROM names topic filters in double quotes, such as FROM "fleet/+/temp"')
        if table.args.get("alias") or any(set(filter(join.args.get, join.args)) - {"this"} for join in joins):
            raise InvalidRule("sql: topic filters have no alias and are not joined: a comma is between them")
        filters.append(str(table.this.this).encode())
    return filters


def conjuncts(expression: exp.Expression) -> list[exp.Expression]:
    """The conditions that AND joins."""
    found: list[exp.Expression] = []
    left = [expression]
    while left:
        each = left.pop()
        if isinstance(each, exp.And):
            left += [each.expression, each.this]
        elif isinstance(each, exp.Paren) and isinstance(each.this, exp.And):
            left.append(each.this)
        else:
            found.append(each)
    return found
