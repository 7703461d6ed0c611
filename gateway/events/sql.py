"""SQL of event rules: `SELECT payload.t AS t FROM "fleet/+/temp" WHERE t > 30`.

The dialect is a part of SQL, parsed by sqlglot and compiled to functions here; docs/events.md describes it. Everything
else is refused, with the part that is not understood. Logic has three values, as in SQL: a comparison with what is not
there, or with another type, is NULL, and an event is selected if WHERE is true.

The work of an evaluation is bounded by the sizes of the statement and of the event.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import Token, TokenType, exp, parse, tokenize
from sqlglot.errors import SqlglotError

from gateway.events.errors import InvalidRule
from gateway.events.event import MISSING, Event
from gateway.events.patterns import Step, shown
from matcher.selector.like import Pattern, pattern_of

MAX_SQL: Final = 8192  # characters
_MAX_DEPTH: Final = 32  # of an expression
_MAX_TERMS: Final = 256  # results of SELECT
_ATTRIBUTES: Final = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_PLAIN: Final = (*_ATTRIBUTES, "topic", "client", "qos", "retain")
_OBJECTS: Final[Mapping[str, str]] = {"payload": "data", "properties": "properties"}
_NAMES: Final = f"{', '.join(_PLAIN)}, payload, properties.NAME, attributes.NAME, and the aliases of SELECT"
_NUMBERS: Final = (int, float)
_MAX_JOINED: Final = 1 << 20  # characters of a text that CONCAT or || makes
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

Value = Any  # a JSON value; None is NULL
Expression = Callable[[Event], Value]


@dataclass(slots=True, frozen=True)
class Term:
    """One result of SELECT."""

    name: str
    evaluate: Expression


class Statement:
    """A compiled statement."""

    __slots__ = ("_conditions", "_tests", "filters", "terms")

    def __init__(self, text: str) -> None:
        """Raises `InvalidRule`."""
        self._conditions: list[tuple[str, Expression]] = []
        try:
            self._compile(_parsed(text))
        except RecursionError as error:
            raise InvalidRule("sql: it is too deep") from error
        self._tests = [condition for _, condition in self._conditions]

    def _compile(self, select: exp.Select) -> None:
        self.filters = _filters(select)
        compiler = _Compiler()
        self.terms = _terms(select, compiler)  # empty: `SELECT *`, the event as it is
        compiler.aliases = {term.name: term.evaluate for term in self.terms}
        where = select.args.get("where")
        for each in _conjuncts(where.this) if where is not None else ():
            self._conditions.append((each.sql(), compiler.compile(each, 1)))

    def matches(self, event: Event) -> bool:
        for condition in self._tests:  # noqa: SIM110  faster than a generator
            if condition(event) is not True:
                return False
        return True

    def explain(self, event: Event) -> list[Step]:
        """Each condition that AND joins in WHERE, and whether it holds."""
        found = [(text, condition(event)) for text, condition in self._conditions]
        return [Step("WHERE", text, shown(value), value is True) for text, value in found]

    def results(self, event: Event) -> dict[str, Value]:
        """What SELECT names, for an event."""
        return {term.name: term.evaluate(event) for term in self.terms}


def _parsed(text: str) -> exp.Select:
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
        elif token.token_type not in _KNOWN_TOKENS and token.text.lower() not in _PLAIN:
            after = tokens[number + 1].token_type if number + 1 < len(tokens) else None
            is_name = before is not None and (
                before.token_type is TokenType.DOT or (before.token_type is TokenType.ALIAS and after in _AFTER_NAMES)
            )
            foreign += not is_name
            if foreign > _MAX_FOREIGN:
                raise InvalidRule(f"sql: {token.text[:100]} is not part of this dialect")


def _filters(select: exp.Select) -> list[bytes]:
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


def _terms(select: exp.Select, compiler: "_Compiler") -> list[Term]:
    expressions = select.expressions
    if len(expressions) == 1 and isinstance(expressions[0], exp.Star):
        return []
    if len(expressions) > _MAX_TERMS:
        raise InvalidRule(f"sql: SELECT has at most {_MAX_TERMS} results")
    terms: list[Term] = []
    for each in expressions:
        inner, name = (each.this, each.alias) if isinstance(each, exp.Alias) else (each, _name_of(each))
        if not name:
            raise InvalidRule(f"sql: {each.sql()} needs a name: {each.sql()} AS name")
        if any(term.name == name for term in terms):
            raise InvalidRule(f"sql: two results have the name {name!r}")
        terms.append(Term(name, compiler.compile(inner, 1)))
    return terms


def _name_of(expression: exp.Expression) -> str:
    """The name of a result without AS: that of its field, or ""."""
    if isinstance(expression, exp.Dot) and isinstance(expression.expression, exp.Identifier):
        return str(expression.expression.this)
    return expression.name if isinstance(expression, exp.Column) and not isinstance(expression.this, exp.Star) else ""


def _conjuncts(expression: exp.Expression) -> list[exp.Expression]:
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


class _Compiler:
    """Compiles expressions."""

    def __init__(self) -> None:
        self.aliases: dict[str, Expression] = {}  # of SELECT; its own expressions do not see them

    def compile(self, node: exp.Expression, depth: int) -> Expression:
        """Raises `InvalidRule`."""
        if depth > _MAX_DEPTH:
            raise InvalidRule(f"sql: an expression is deeper than {_MAX_DEPTH} levels")
        build = _BUILDERS.get(type(node))
        if build is None or not _PARTS.get(type(node), _USUAL_PARTS).issuperset(_parts_in_use(node)):
            raise InvalidRule(f"sql: {node.sql()[:100]} is not part of this dialect")
        return build(self, node, depth + 1)

    def each(self, nodes: Sequence[exp.Expression], depth: int) -> list[Expression]:
        return [self.compile(node, depth) for node in nodes]


# --- fields


def _parts_of(node: exp.Expression) -> list[str | int]:
    """The names and indexes of a path such as `payload.a.b[0].c`. Raises `InvalidRule`."""
    parts: list[str | int] = []
    while not isinstance(node, exp.Column):
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
            parts.append(str(node.expression.this))
        elif isinstance(node, exp.Bracket) and len(node.expressions) == 1 and node.expressions[0].is_int:
            parts.append(int(node.expressions[0].to_py()))
        else:
            raise InvalidRule(
                f"sql: {node.sql()[:100]} is no field: names with dots, and [number] for elements of arrays"
            )
        node = node.this
    if isinstance(node.this, exp.Star):
        raise InvalidRule("sql: * stands alone, as SELECT *")
    return [*[part.name for part in node.parts], *reversed(parts)]


def _column(compiler: _Compiler, node: exp.Expression, _depth: int) -> Expression:
    first, *rest = _parts_of(node)
    name = str(first)
    if not rest:
        if name in compiler.aliases:
            return compiler.aliases[name]
        if name in _PLAIN or name in _OBJECTS:
            field = _OBJECTS.get(name, name)
            return lambda event: _null(event.field(field))
        raise InvalidRule(f"sql: there is no {name!r}; there are {_NAMES}")
    if name == "attributes" and len(rest) == 1:
        attribute = str(rest[0])
        return lambda event: event.attributes.get(attribute)
    if name in compiler.aliases:
        base = compiler.aliases[name]
        return lambda event: _below(base(event), rest)
    if name not in _OBJECTS:
        raise InvalidRule(f"sql: there is no {name}.{rest[0]}; there are {_NAMES}")
    field = _OBJECTS[name]
    if len(rest) == 1 and isinstance(rest[0], str) and field == "data":
        key = rest[0]

        def one(event: Event) -> Value:
            value = event.body
            return value.get(key) if type(value) is dict else None

        return one
    return lambda event: _below(event.field(field), rest)


def _below(value: Value, parts: Sequence[str | int]) -> Value:
    for part in parts:
        if type(value) is dict and isinstance(part, str):
            value = value.get(part)
        elif type(value) is list and isinstance(part, int):
            value = value[part] if -len(value) <= part < len(value) else None
        else:
            return None
    return _null(value)


def _null(value: Value) -> Value:
    return None if value is MISSING else value


# --- literals, logic and comparisons


def _literal(_compiler: _Compiler, node: exp.Expression, _depth: int) -> Expression:
    value = node.to_py() if not isinstance(node, exp.Literal) or node.is_string else _number(node.this)
    return lambda _event: value


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _inner(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    return compiler.compile(node.this, depth)


def _and(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    left, right = compiler.each([node.this, node.expression], depth)

    def value(event: Event) -> Value:
        one = left(event)
        if one is False:
            return False
        other = right(event)
        if other is False:
            return False
        return True if one is True and other is True else None

    return value


def _or(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    left, right = compiler.each([node.this, node.expression], depth)

    def value(event: Event) -> Value:
        one = left(event)
        if one is True:
            return True
        other = right(event)
        if other is True:
            return True
        return False if one is False and other is False else None

    return value


def _not(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    inner = compiler.compile(node.this, depth)

    def value(event: Event) -> Value:
        found = inner(event)
        return not found if isinstance(found, bool) else None

    return value


def _are_comparable(one: Value, other: Value) -> bool:
    if type(one) is type(other):
        return type(one) in (str, int, float)
    return type(one) in _NUMBERS and type(other) in _NUMBERS


def _equal(one: Value, other: Value) -> bool | None:
    if one is None or other is None:
        return None
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _comparing(compare: Callable[[Any, Any], bool]) -> "Builder":
    def build(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
        left, right = compiler.each([node.this, node.expression], depth)
        if isinstance(node.expression, exp.Literal) and not node.expression.is_string:
            limit = _number(node.expression.this)

            def of_number(event: Event) -> Value:
                one = left(event)
                return compare(one, limit) if type(one) is int or type(one) is float else None

            return of_number

        def value(event: Event) -> Value:
            one, other = left(event), right(event)
            return compare(one, other) if _are_comparable(one, other) else None

        return value

    return build


def _equals(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    left, right = compiler.each([node.this, node.expression], depth)
    return lambda event: _equal(left(event), right(event))


def _differs(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    left, right = compiler.each([node.this, node.expression], depth)

    def value(event: Event) -> Value:
        found = _equal(left(event), right(event))
        return None if found is None else not found

    return value


def _is(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    inner = compiler.compile(node.this, depth)
    what = node.expression
    if isinstance(what, exp.Null):
        return lambda event: inner(event) is None
    if isinstance(what, exp.Boolean):
        wanted = bool(what.this)
        return lambda event: inner(event) is wanted
    raise InvalidRule(f"sql: {node.sql()[:100]} is not part of this dialect: IS NULL, IS TRUE and IS FALSE are")


def _in(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    if not node.expressions:
        raise InvalidRule(f"sql: {node.sql()[:100]}: IN has a list of values")
    inner, choices = compiler.compile(node.this, depth), compiler.each(node.expressions, depth)

    def value(event: Event) -> Value:
        one = inner(event)
        found = [_equal(one, choice(event)) for choice in choices]
        return True if True in found else None if None in found else False

    return value


def _between(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    inner, low, high = compiler.each([node.this, node.args["low"], node.args["high"]], depth)

    def value(event: Event) -> Value:
        one, least, most = inner(event), low(event), high(event)
        if not (_are_comparable(one, least) and _are_comparable(one, most)):
            return None
        return bool(least <= one <= most)

    return value


def _like(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    escape: str | None = None
    if isinstance(node, exp.Escape):
        escape, node = str(node.expression.this), node.this
        if len(escape) != 1:
            raise InvalidRule("sql: ESCAPE has one character")
    if not isinstance(node, exp.Like) or not isinstance(node.expression, exp.Literal) or not node.expression.is_string:
        raise InvalidRule(f"sql: {node.sql()[:100]}: the pattern of LIKE is a text in single quotes")
    if not {"this", "expression", "negate"}.issuperset(_parts_in_use(node)):
        raise InvalidRule(f"sql: {node.sql()[:100]} is not part of this dialect")
    inner, wanted = compiler.compile(node.this, depth), not node.args.get("negate")
    try:
        pattern: Pattern = pattern_of(str(node.expression.this), escape)
    except ValueError as error:
        raise InvalidRule(f"sql: LIKE: {error}") from error

    def value(event: Event) -> Value:
        text = inner(event)
        return pattern.matches(text) is wanted if isinstance(text, str) else None

    return value


def _case(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    subject = compiler.compile(node.this, depth) if node.this is not None else None
    branches = [compiler.each([each.this, each.args["true"]], depth) for each in node.args["ifs"]]
    default = compiler.compile(node.args["default"], depth) if node.args.get("default") is not None else None

    def value(event: Event) -> Value:
        for condition, result in branches:
            found = condition(event)
            if (found is True) if subject is None else (_equal(subject(event), found) is True):
                return result(event)
        return None if default is None else default(event)

    return value


# --- arithmetic and functions


def _calculating(calculate: Callable[[Any, Any], Any]) -> "Builder":
    def build(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
        left, right = compiler.each([node.this, node.expression], depth)

        def value(event: Event) -> Value:
            one, other = left(event), right(event)
            if type(one) not in _NUMBERS or type(other) not in _NUMBERS:
                return None
            try:
                return calculate(one, other)
            except ArithmeticError:
                return None

        return value

    return build


def _of_number(calculate: Callable[[Any], Any]) -> "Builder":
    def build(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
        inner = compiler.compile(node.this, depth)

        def value(event: Event) -> Value:
            number = inner(event)
            try:
                return calculate(number) if type(number) in _NUMBERS else None
            except (ArithmeticError, ValueError):
                return None

        return value

    return build


def _of_text(change: Callable[[str], Any]) -> "Builder":
    def build(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
        inner = compiler.compile(node.this, depth)

        def value(event: Event) -> Value:
            text = inner(event)
            return change(text) if isinstance(text, str) else None

        return value

    return build


def _round(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    inner = compiler.compile(node.this, depth)
    decimals = node.args.get("decimals")
    if decimals is not None and not decimals.is_int:
        raise InvalidRule("sql: ROUND has a whole number of decimals")
    places = min(max(int(decimals.to_py()), 0), 15) if decimals is not None else 0

    def value(event: Event) -> Value:
        number = inner(event)
        try:
            return (round(number, places) if places else round(number)) if type(number) in _NUMBERS else None
        except (ArithmeticError, ValueError):
            return None

    return value


def _joined(nodes_of: Callable[[exp.Expression], list[exp.Expression]]) -> "Builder":
    def build(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
        parts = compiler.each(nodes_of(node), depth)

        def value(event: Event) -> Value:
            texts = [_as_text(part(event)) for part in parts]
            found = [text for text in texts if text is not None]
            if len(found) < len(texts) or sum(map(len, found)) > _MAX_JOINED:
                return None
            return "".join(found)

        return value

    return build


def _as_text(value: Value) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _coalesce(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    parts = compiler.each([node.this, *node.expressions], depth)

    def value(event: Event) -> Value:
        for part in parts:
            found = part(event)
            if found is not None:
                return found
        return None

    return value


def _substring(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    inner = compiler.compile(node.this, depth)
    numbers = [node.args.get("start"), node.args.get("length")]
    if not all(each is None or each.is_int for each in numbers):
        raise InvalidRule("sql: SUBSTRING has whole numbers, from 1 on: the first character and how many")
    start, length = (None if each is None else int(each.to_py()) for each in numbers)
    begin = max((start or 1) - 1, 0)
    end = None if length is None else begin + max(length, 0)

    def value(event: Event) -> Value:
        text = inner(event)
        return text[begin:end] if isinstance(text, str) else None

    return value


def _cast(compiler: _Compiler, node: exp.Expression, depth: int) -> Expression:
    inner = compiler.compile(node.this, depth)
    kind = node.args["to"].this
    convert = _CASTS.get(kind)
    if convert is None:
        raise InvalidRule(
            f"sql: CAST to {node.args['to'].sql()}: there are INT, BIGINT, DOUBLE, FLOAT, VARCHAR and TEXT"
        )

    def value(event: Event) -> Value:
        found = inner(event)
        try:
            return convert(found) if isinstance(found, str | int | float) else None
        except (ArithmeticError, ValueError):
            return None

    return value


_MAX_DIGITS: Final = 64  # of a text that becomes a number


def _to_int(value: Any) -> int:
    return int(value[:_MAX_DIGITS] if isinstance(value, str) else value)


def _to_float(value: Any) -> float:
    return float(value[:_MAX_DIGITS] if isinstance(value, str) else value)


_CASTS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    **dict.fromkeys((exp.DataType.Type.INT, exp.DataType.Type.BIGINT), _to_int),
    **dict.fromkeys((exp.DataType.Type.DOUBLE, exp.DataType.Type.FLOAT), _to_float),
    **dict.fromkeys((exp.DataType.Type.VARCHAR, exp.DataType.Type.TEXT), _as_text),
}


def _anonymous(_compiler: _Compiler, node: exp.Expression, _depth: int) -> Expression:
    name, arguments = str(node.this).lower(), node.expressions
    if name != "topic_level":
        raise InvalidRule(f"sql: there is no function {node.this}; docs/events.md lists those that there are")
    if len(arguments) != 1 or not arguments[0].is_int or int(arguments[0].to_py()) < 1:
        raise InvalidRule("sql: topic_level has the number of a level, from 1 on")
    index = int(arguments[0].to_py()) - 1

    def value(event: Event) -> Value:
        levels = event.topic.split(b"/", index + 1)
        return levels[index].decode() if index < len(levels) else None

    return value


def _floor(number: float) -> int:
    return int(number // 1)


def _ceil(number: float) -> int:
    return -int(-number // 1)


def _divide(one: float, other: float) -> float:
    return one / other


def _parts_in_use(node: exp.Expression) -> set[str]:
    """The parts of an expression that say something. Those that begin with an underscore are sqlglot's own notes."""
    return {name for name, part in node.args.items() if part and name not in _NOTES and name[0] != "_"}


# What a part may be that a builder knows: nothing that sqlglot has understood is left out.
_USUAL_PARTS: Final = frozenset(("this", "expression"))
_NOTES: Final = frozenset(("safe", "coalesce", "is_string", "quoted", "typed"))
_PARTS: Final[Mapping[type[exp.Expression], frozenset[str]]] = {
    exp.Column: frozenset(("this", "table", "db", "catalog")),
    exp.Bracket: frozenset(("this", "expressions")),
    exp.In: frozenset(("this", "expressions")),
    exp.Between: frozenset(("this", "low", "high")),
    exp.Like: frozenset(("this", "expression", "negate")),
    exp.Case: frozenset(("this", "ifs", "default")),
    exp.Round: frozenset(("this", "decimals")),
    exp.Substring: frozenset(("this", "start", "length")),
    exp.Concat: frozenset(("expressions",)),
    exp.Coalesce: frozenset(("this", "expressions")),
    exp.Cast: frozenset(("this", "to")),
    exp.Anonymous: frozenset(("this", "expressions")),
}
Builder = Callable[[_Compiler, exp.Expression, int], Expression]
_BUILDERS: Final[Mapping[type[exp.Expression], Builder]] = {
    exp.Column: _column,
    exp.Dot: _column,
    exp.Bracket: _column,
    exp.Literal: _literal,
    exp.Boolean: _literal,
    exp.Null: lambda _compiler, _node, _depth: lambda _event: None,
    exp.Paren: _inner,
    exp.And: _and,
    exp.Or: _or,
    exp.Not: _not,
    exp.EQ: _equals,
    exp.NEQ: _differs,
    exp.LT: _comparing(operator.lt),
    exp.LTE: _comparing(operator.le),
    exp.GT: _comparing(operator.gt),
    exp.GTE: _comparing(operator.ge),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.Escape: _like,
    exp.Case: _case,
    exp.Add: _calculating(lambda one, other: one + other),
    exp.Sub: _calculating(lambda one, other: one - other),
    exp.Mul: _calculating(lambda one, other: one * other),
    exp.Div: _calculating(_divide),
    exp.Mod: _calculating(lambda one, other: one % other),
    exp.Neg: _of_number(lambda number: -number),
    exp.Abs: _of_number(abs),
    exp.Floor: _of_number(_floor),
    exp.Ceil: _of_number(_ceil),
    exp.Round: _round,
    exp.Lower: _of_text(str.lower),
    exp.Upper: _of_text(str.upper),
    exp.Trim: _of_text(str.strip),
    exp.Length: _of_text(len),
    exp.Substring: _substring,
    exp.Concat: _joined(lambda node: list(node.expressions)),
    exp.DPipe: _joined(lambda node: [node.this, node.expression]),
    exp.Coalesce: _coalesce,
    exp.Cast: _cast,
    exp.Anonymous: _anonymous,
}
