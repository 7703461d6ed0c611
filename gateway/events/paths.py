"""JSONPath (RFC 9535), parsed and evaluated by jsonpath-rfc9535. What could cost more than a look at the whole document
is left out: filters, and several selectors of a segment."""

from itertools import islice
from typing import Any, Final

from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError
from jsonpath_rfc9535.segments import JSONPathRecursiveDescentSegment
from jsonpath_rfc9535.selectors import FilterSelector, IndexSelector, NameSelector

from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import MISSING

_MAX_PATH: Final = 1024  # characters
_MAX_FOUND: Final = 10_000  # values
_ENVIRONMENT: Final = JSONPathEnvironment()


class Path:
    """A compiled path."""

    __slots__ = ("_parts", "_query", "is_single")

    def __init__(self, text: str) -> None:
        """Raises `InvalidRule`."""
        if len(text) > _MAX_PATH:
            raise InvalidRule(f"path: it has at most {_MAX_PATH} characters")
        try:
            self._query = _ENVIRONMENT.compile(text)
        except (JSONPathError, RecursionError) as error:
            raise InvalidRule(f"path: {error}") from error
        segments = self._query.segments
        if sum(isinstance(each, JSONPathRecursiveDescentSegment) for each in segments) > 1:
            raise InvalidRule("path: it has .. once")
        if any(len(each.selectors) > 1 or isinstance(each.selectors[0], FilterSelector) for each in segments):
            raise InvalidRule("path: there are no filters (?) here, and one selector in each pair of brackets")
        self.is_single = self._query.singular_query()  # it can name one value only
        self._parts = [_part_of(each.selectors[0]) for each in segments] if self.is_single else []

    def find(self, document: Any) -> Any:
        """The value at the path if it can name one only, else the list of all values. Raises `EvaluationFailed` if
        there is none, or there are too many."""
        if self.is_single:
            return self._find_one(document)
        try:
            found = [node.value for node in islice(self._query.finditer(document), _MAX_FOUND + 1)]
        except (JSONPathError, RecursionError) as error:
            raise EvaluationFailed(f"the path fails: {error}") from error
        if len(found) > _MAX_FOUND:
            raise EvaluationFailed(f"the path finds more than {_MAX_FOUND} values")
        return found

    def _find_one(self, document: Any) -> Any:
        value = document
        for part in self._parts:
            if isinstance(part, str):
                value = value.get(part, MISSING) if isinstance(value, dict) else MISSING
            else:
                is_there = isinstance(value, list) and -len(value) <= part < len(value)
                value = value[part] if is_there else MISSING
            if value is MISSING:
                raise EvaluationFailed("there is nothing at the path")
        return value


def _part_of(selector: Any) -> str | int:
    assert isinstance(selector, NameSelector | IndexSelector)
    return selector.name if isinstance(selector, NameSelector) else selector.index
