"""Builds expressions of the nodes that sqlglot makes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from gateway.events.errors import InvalidRule
from gateway.events.sql.expressions import Expression

_MAX_DEPTH: Final = 32  # of an expression
_USUAL_PARTS: Final = frozenset(("this", "expression"))
_NOTES: Final = frozenset(("safe", "coalesce", "is_string", "quoted", "typed"))  # of sqlglot, which say nothing here

Builder = Callable[["Compiler", exp.Expression, int], Expression]


@dataclass(slots=True, frozen=True)
class Part:
    """A kind of node that the dialect has."""

    build: Builder
    # The parts of such a node that `build` knows: nothing that sqlglot has understood is left out.
    known: frozenset[str] = _USUAL_PARTS


class Compiler:
    """Compiles the expressions of a statement."""

    def __init__(self, dialect: Mapping[type[exp.Expression], Part]) -> None:
        self._dialect = dialect
        self.aliases: dict[str, Expression] = {}  # of SELECT; its own expressions do not see them
        self.count = 0  # expressions that were compiled

    def compile(self, node: exp.Expression, depth: int) -> Expression:
        """Raises `InvalidRule`."""
        if depth > _MAX_DEPTH:
            raise InvalidRule(f"sql: an expression is deeper than {_MAX_DEPTH} levels")
        part = self._dialect.get(type(node))
        if part is None or not part.known.issuperset(parts_in_use(node)):
            raise InvalidRule(f"sql: {node.sql()[:100]} is not part of this dialect")
        self.count += 1
        return part.build(self, node, depth + 1)

    def each(self, nodes: Sequence[exp.Expression], depth: int) -> list[Expression]:
        return [self.compile(node, depth) for node in nodes]


def parts_in_use(node: exp.Expression) -> set[str]:
    """The parts of a node that say something. Those that begin with an underscore are sqlglot's own notes."""
    return {name for name, part in node.args.items() if part and name not in _NOTES and name[0] != "_"}
