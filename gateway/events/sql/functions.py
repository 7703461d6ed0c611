"""Builds arithmetic and functions."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlglot import exp

from gateway.events.errors import InvalidRule
from gateway.events.sql.building import Builder, Compiler
from gateway.events.sql.calculations import Calculation, Cast, Coalesced, Joined, OfNumber, OfText, Substring, as_text
from gateway.events.sql.expressions import Expression, TopicLevel

_MAX_DIGITS: Final = 64  # of a text that becomes a number
_MAX_PLACES: Final = 15


def calculating(calculate: Callable[[Any, Any], Any]) -> Builder:
    def build(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
        left, right = compiler.each([node.this, node.expression], depth)
        return Calculation(calculate, left, right)

    return build


def of_number(calculate: Callable[[Any], Any]) -> Builder:
    return lambda compiler, node, depth: OfNumber(calculate, compiler.compile(node.this, depth))


def of_text(change: Callable[[str], Any]) -> Builder:
    return lambda compiler, node, depth: OfText(change, compiler.compile(node.this, depth))


def joining(nodes_of: Callable[[exp.Expression], list[exp.Expression]]) -> Builder:
    return lambda compiler, node, depth: Joined(compiler.each(nodes_of(node), depth))


def rounded(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    inner = compiler.compile(node.this, depth)
    decimals = node.args.get("decimals")
    if decimals is not None and not decimals.is_int:
        raise InvalidRule("sql: ROUND has a whole number of decimals")
    places = min(max(int(decimals.to_py()), 0), _MAX_PLACES) if decimals is not None else 0
    return OfNumber((lambda number: round(number, places)) if places else round, inner)


def coalesced(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    return Coalesced(compiler.each([node.this, *node.expressions], depth))


def substring(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    inner = compiler.compile(node.this, depth)
    numbers = [node.args.get("start"), node.args.get("length")]
    if not all(each is None or each.is_int for each in numbers):
        raise InvalidRule("sql: SUBSTRING has whole numbers, from 1 on: the first character and how many")
    start, length = (None if each is None else int(each.to_py()) for each in numbers)
    begin = max((start or 1) - 1, 0)
    return Substring(inner, begin, None if length is None else begin + max(length, 0))


def cast(compiler: Compiler, node: exp.Expression, depth: int) -> Expression:
    convert = _CASTS.get(node.args["to"].this)
    if convert is None:
        kind = node.args["to"].sql()
        raise InvalidRule(f"sql: CAST to {kind}: there are INT, BIGINT, DOUBLE, FLOAT, VARCHAR and TEXT")
    return Cast(convert, compiler.compile(node.this, depth))


def anonymous(_compiler: Compiler, node: exp.Expression, _depth: int) -> Expression:
    """`topic_level(2)`, which is no function of SQL."""
    name, arguments = str(node.this).lower(), node.expressions
    if name != "topic_level":
        raise InvalidRule(f"sql: there is no function {node.this}; docs/events.md lists those that there are")
    if len(arguments) != 1 or not arguments[0].is_int or int(arguments[0].to_py()) < 1:
        raise InvalidRule("sql: topic_level has the number of a level, from 1 on")
    return TopicLevel(int(arguments[0].to_py()) - 1)


def floor(number: float) -> int:
    return int(number // 1)


def ceil(number: float) -> int:
    return -int(-number // 1)


def _to_int(value: Any) -> int:
    return int(value[:_MAX_DIGITS] if isinstance(value, str) else value)


def _to_float(value: Any) -> float:
    return float(value[:_MAX_DIGITS] if isinstance(value, str) else value)


_CASTS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    **dict.fromkeys((exp.DataType.Type.INT, exp.DataType.Type.BIGINT), _to_int),
    **dict.fromkeys((exp.DataType.Type.DOUBLE, exp.DataType.Type.FLOAT), _to_float),
    **dict.fromkeys((exp.DataType.Type.VARCHAR, exp.DataType.Type.TEXT), as_text),
}
