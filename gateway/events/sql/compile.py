"""Compiles a statement: fields, logic and comparisons, and the table of all that the dialect has."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from gateway.events.errors import InvalidRule
from gateway.events.sql import functions
from gateway.events.sql.building import Builder, Compiler, Part, parts_in_use
from gateway.events.sql.expressions import (
    AT_LEAST,
    AT_MOST,
    LESS,
    MORE,
    Alias,
    And,
    Attribute,
    Below,
    Between,
    Case,
    Comparison,
    Constant,
    Equality,
    Expression,
    Field,
    In,
    Is,
    Like,
    Member,
    Not,
    Or,
    Value,
)
from gateway.events.sql.parse import FIELDS, conjuncts, filters_of, parse_select
from matcher.selector.like import pattern_of

_MAX_TERMS: Final = 256  # results of SELECT
_OBJECTS: Final[Mapping[str, str]] = {"payload": "data", "properties": "properties", "enriched": "enriched"}
_NAMES: Final = (
    f"{', '.join(FIELDS)}, payload, properties.NAME, attributes.NAME, enriched.NAME, and the aliases of SELECT"
)


@dataclass(slots=True, frozen=True)
class Compiled:
    """A compiled statement."""

    filters: list[bytes]
    terms: list[tuple[str, Expression]]  # what SELECT names; empty: `SELECT *`, the event as it is
    conditions: list[tuple[str, Expression]]  # of WHERE, which AND joins, with their texts


def compile_statement(text: str) -> Compiled:
    """Raises `InvalidRule`."""
    try:
        select = parse_select(text)
        compiler = Compiler(_DIALECT)
        terms = _terms(select, compiler)
        where = select.args.get("where")
        found = conjuncts(where.this) if where is not None else []
        conditions = [(each.sql(), compiler.compile(each, 1)) for each in found]
        return Compiled(filters_of(select), terms, conditions)
    except RecursionError as error:
        raise InvalidRule("sql: it is too deep") from error


def _terms(select: exp.Select, compiler: Compiler) -> list[tuple[str, Expression]]:
    """The results of SELECT, whose names the compiler knows from then on."""
    expressions = select.expressions
    if len(expressions) == 1 and isinstance(expressions[0], exp.Star):
        return []
    if len(expressions) > _MAX_TERMS:
        raise InvalidRule(f"sql: SELECT has at most {_MAX_TERMS} results")
    terms: dict[str, Expression] = {}
    aliases: dict[str, Expression] = {}
    for each in expressions:
        inner, name = (each.this, each.alias) if isinstance(each, exp.Alias) else (each, _name_of(each))
        if not name:
            raise InvalidRule(f"sql: {each.sql()} needs a name: {each.sql()} AS name")
        if name in terms:
            raise InvalidRule(f"sql: two results have the name {name!r}")
        before = compiler.count
        terms[name] = compiler.compile(inner, 1)
        aliases[name] = Alias(terms[name], compiler.count - before)
    compiler.aliases = aliases
    return list(terms.items())


def _name_of(expression: exp.Expression) -> str:
    """The name of a result without AS: that of its field, or ""."""
    if isinstance(expression, exp.Dot) and isinstance(expression.expression, exp.Identifier):
        return str(expression.expression.this)
    return expression.name if isinstance(expression, exp.Column) and not isinstance(expression.this, exp.Star) else ""


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


def _column(compiler: Compiler, node: exp.Expression, _depth: int) -> Expression:
    first, *rest = _parts_of(node)
    name = str(first)
    if not rest:
        if name in compiler.aliases:
            return compiler.aliases[name]
        if name in FIELDS or name in _OBJECTS:
            return Field(_OBJECTS.get(name, name))
        raise InvalidRule(f"sql: there is no {name!r}; there are {_NAMES}")
    if name == "attributes" and len(rest) == 1:
        return Attribute(str(rest[0]))
    if name in compiler.aliases:
        return Below(compiler.aliases[name], rest)
    if name not in _OBJECTS:
        raise InvalidRule(f"sql: there is no {name}.{rest[0]}; there are {_NAMES}")
    if name == "payload" and isinstance(rest[0], str):
        member = Member(rest[0])
        return Below(member, rest[1:]) if rest[1:] else member
    return Below(Field(_OBJECTS[name]), rest)


# --- literals, logic and comparisons


def _literal(_compiler: Compiler, node: exp.Expression, _depth: int) -> Expression:
    is_number = isinstance(node, exp.Literal) and not node.is_string
    return Constant(_number(node.this) if is_number else node.to_py())


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _inner(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    return compiler.compile(node.this, depth)


def _and(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    return And(*compiler.each([node.this, node.expression], depth))


def _or(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    return Or(*compiler.each([node.this, node.expression], depth))


def _not(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    return Not(compiler.compile(node.this, depth))


def _comparing(compared: int) -> Builder:
    def build(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
        left, right = compiler.each([node.this, node.expression], depth)
        return Comparison(compared, left, right)

    return build


def _equality(wanted: bool) -> Builder:
    def build(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
        left, right = compiler.each([node.this, node.expression], depth)
        return Equality(left, right, wanted)

    return build


def _is(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    inner, what = compiler.compile(node.this, depth), node.expression
    if isinstance(what, exp.Null):
        return Is(inner, None)
    if isinstance(what, exp.Boolean):
        return Is(inner, bool(what.this))
    raise InvalidRule(f"sql: {node.sql()[:100]} is not part of this dialect: IS NULL, IS TRUE and IS FALSE are")


def _in(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    if not node.expressions:
        raise InvalidRule(f"sql: {node.sql()[:100]}: IN has a list of values")
    return In(compiler.compile(node.this, depth), compiler.each(node.expressions, depth))


def _between(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    return Between(*compiler.each([node.this, node.args["low"], node.args["high"]], depth))


def _like(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    escape: str | None = None
    if isinstance(node, exp.Escape):
        escape, node = str(node.expression.this), node.this
        if len(escape) != 1:
            raise InvalidRule("sql: ESCAPE has one character")
    if not isinstance(node, exp.Like) or not isinstance(node.expression, exp.Literal) or not node.expression.is_string:
        raise InvalidRule(f"sql: {node.sql()[:100]}: the pattern of LIKE is a text in single quotes")
    if not _DIALECT[exp.Like].known.issuperset(parts_in_use(node)):
        raise InvalidRule(f"sql: {node.sql()[:100]} is not part of this dialect")
    try:
        pattern = pattern_of(str(node.expression.this), escape)
    except ValueError as error:
        raise InvalidRule(f"sql: LIKE: {error}") from error
    return Like(compiler.compile(node.this, depth), pattern, not node.args.get("negate"))


def _case(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    subject = compiler.compile(node.this, depth) if node.this is not None else None
    pairs = [compiler.each([each.this, each.args["true"]], depth) for each in node.args["ifs"]]
    default = compiler.compile(node.args["default"], depth) if node.args.get("default") is not None else None
    return Case(subject, [(condition, result) for condition, result in pairs], default)


def _divide(one: float, other: float) -> Value:
    return one / other


def _part(build: Builder, *known: str) -> Part:
    return Part(build, frozenset(known))


_DIALECT: Final[Mapping[type[exp.Expression], Part]] = {
    exp.Column: _part(_column, "this", "table", "db", "catalog"),
    exp.Dot: Part(_column),
    exp.Bracket: _part(_column, "this", "expressions"),
    exp.Literal: Part(_literal),
    exp.Boolean: Part(_literal),
    exp.Null: Part(lambda _compiler, _node, _depth: Constant(None)),
    exp.Paren: Part(_inner),
    exp.And: Part(_and),
    exp.Or: Part(_or),
    exp.Not: Part(_not),
    exp.EQ: Part(_equality(True)),
    exp.NEQ: Part(_equality(False)),
    exp.LT: Part(_comparing(LESS)),
    exp.LTE: Part(_comparing(AT_MOST)),
    exp.GT: Part(_comparing(MORE)),
    exp.GTE: Part(_comparing(AT_LEAST)),
    exp.Is: Part(_is),
    exp.In: _part(_in, "this", "expressions"),
    exp.Between: _part(_between, "this", "low", "high"),
    exp.Like: _part(_like, "this", "expression", "negate"),
    exp.Escape: Part(_like),
    exp.Case: _part(_case, "this", "ifs", "default"),
    exp.Add: Part(functions.calculating(operator.add)),
    exp.Sub: Part(functions.calculating(operator.sub)),
    exp.Mul: Part(functions.calculating(operator.mul)),
    exp.Div: Part(functions.calculating(_divide)),
    exp.Mod: Part(functions.calculating(operator.mod)),
    exp.Neg: Part(functions.of_number(operator.neg)),
    exp.Abs: Part(functions.of_number(abs)),
    exp.Floor: Part(functions.of_number(functions.floor)),
    exp.Ceil: Part(functions.of_number(functions.ceil)),
    exp.Round: _part(functions.rounded, "this", "decimals"),
    exp.Lower: Part(functions.of_text(str.lower)),
    exp.Upper: Part(functions.of_text(str.upper)),
    exp.Trim: Part(functions.of_text(str.strip)),
    exp.Length: Part(functions.of_text(len)),
    exp.Substring: _part(functions.substring, "this", "start", "length"),
    exp.Concat: _part(functions.joining(lambda node: list(node.expressions)), "expressions"),
    exp.DPipe: Part(functions.joining(lambda node: [node.this, node.expression])),
    exp.Coalesce: _part(functions.coalesced, "this", "expressions"),
    exp.Cast: _part(functions.cast, "this", "to"),
    exp.Anonymous: _part(functions.anonymous, "this", "expressions"),
}
