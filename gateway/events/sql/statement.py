"""A statement at work."""

from typing import Final

from gateway.events.event import Event
from gateway.events.patterns import Step, shown
from gateway.events.sql.compile import compile_statement
from gateway.events.sql.expressions import Expression, Value

_CONTAINERS: Final = (dict, list)


class Statement:
    """A compiled statement."""

    __slots__ = ("_conditions", "_terms", "_tests", "filters", "is_whole")

    def __init__(self, text: str) -> None:
        """Raises `InvalidRule`."""
        compiled = compile_statement(text)
        self.filters: list[bytes] = compiled.filters
        self.is_whole = not compiled.terms  # `SELECT *`: it passes events on as they are
        self._terms: list[tuple[str, Expression]] = compiled.terms
        self._conditions: list[tuple[str, Expression]] = compiled.conditions
        self._tests: list[Expression] = [condition for _, condition in compiled.conditions]

    def matches(self, event: Event) -> bool:
        """Raises `EvaluationFailed`."""
        for condition in self._tests:  # noqa: SIM110  faster than a generator
            if condition.value(event) is not True:
                return False
        return True

    def explain(self, event: Event) -> list[Step]:
        """Each condition that AND joins in WHERE, and whether it holds. Raises `EvaluationFailed`."""
        found = [(text, condition.value(event)) for text, condition in self._conditions]
        return [Step("WHERE", text, shown(value), value is True) for text, value in found]

    def results(self, event: Event) -> dict[str, Value]:
        """What SELECT names, for an event. Raises `EvaluationFailed`."""
        found: dict[str, Value] = {}
        for name, expression in self._terms:
            value = expression.value(event)
            if isinstance(value, str):
                event.look_at(value)  # each is written
            elif isinstance(value, _CONTAINERS):
                event.spend_whole()
            found[name] = value
        return found
