"""Patterns: which events a rule is about. The form is that of Amazon EventBridge's event patterns.

A pattern is a JSON object. Each of its names is a field of the event (`Event.field`), or of an object in it; all of
them have to match. A name has an object, which goes deeper, or a list of alternatives, one of which has to match:

    {"levels": {"2": ["hall", {"prefix": "room-"}]}, "data": {"temp": [{"numeric": [">", 30, "<=", 80]}]}}

An alternative is a text, a number, true, false or null, which the value has to equal, or an object with one of the
names in `_MATCHERS`. If the value is an array, one of its elements has to match. `$or` in place of a name has a list of
patterns, one of which has to match. What is not there matches `{"exists": false}` alone.

A pattern is compiled once. The work of a match is bounded by the sizes of the pattern and of the event: no matcher uses
regular expressions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final

import orjson

from gateway.events.errors import InvalidRule
from gateway.events.event import MISSING, Event
from matcher.selector.like import pattern_of

MAX_PATTERN: Final = 16_384  # bytes of JSON
_MAX_DEPTH: Final = 16
_MAX_SHOWN: Final = 200  # characters of a value in an explanation
_OR: Final = "$or"
_FIELDS: Final = "data, topic, levels, properties, client, qos, retain, or an attribute of CloudEvents"

Test = Callable[[Any], bool]  # of one value that is no array


@dataclass(slots=True, frozen=True)
class Step:
    """One condition on an event, and whether it holds."""

    path: str
    condition: str
    value: str  # of the event there
    holds: bool


class _Leaf:
    """Alternatives for the value at a path."""

    __slots__ = ("_accepts_missing", "_tests", "_text", "_texts")

    def __init__(self, path: str, alternatives: list[Any]) -> None:
        if not alternatives:
            raise InvalidRule(f"pattern: {path} has no alternatives, so that nothing would match")
        self._text = orjson.dumps(alternatives).decode()
        # Texts, which are most alternatives, are found at once, however many there are.
        self._texts = frozenset(each for each in alternatives if isinstance(each, str))
        self._accepts_missing = any(
            each == {"exists": False} and each["exists"] is False for each in alternatives if isinstance(each, dict)
        )
        self._tests = [_test_of(path, each) for each in alternatives if not isinstance(each, str)]

    def matches(self, value: Any) -> bool:
        if value is MISSING:
            return self._accepts_missing
        if type(value) is list:
            return any(map(self._matches_one, value))
        return self._matches_one(value)

    def _matches_one(self, value: Any) -> bool:
        if type(value) is str and value in self._texts:
            return True
        return any(test(value) for test in self._tests)

    def explain(self, path: str, value: Any, steps: list[Step]) -> bool:
        holds = self.matches(value)
        steps.append(Step(path, self._text[:_MAX_SHOWN], shown(value), holds))
        return holds


class _Node:
    """Conditions on the names of an object."""

    __slots__ = ("children", "choices")

    def __init__(self, path: str, pattern: dict[str, Any], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise InvalidRule(f"pattern: {path} is deeper than {_MAX_DEPTH} levels")
        self.children: list[tuple[str, _Leaf | _Node]] = []
        self.choices: list[list[_Node]] = []  # of each of them, one has to match
        for name, below in pattern.items():
            here = f"{path}.{name}" if path else name
            if name == _OR:
                if not isinstance(below, list) or not below or not all(isinstance(each, dict) for each in below):
                    raise InvalidRule(f"pattern: {here} is a list of patterns")
                self.choices.append([_Node(path, each, depth + 1) for each in below])
            elif isinstance(below, dict):
                self.children.append((name, _Node(here, below, depth + 1)))
            elif isinstance(below, list):
                self.children.append((name, _Leaf(here, below)))
            else:
                raise InvalidRule(f"pattern: {here} is a list of alternatives or an object, such as [{below!r}]")
        if not self.children and not self.choices:
            raise InvalidRule(f"pattern: {path or 'it'} is an empty object, which says nothing")

    def matches(self, value: Any) -> bool:
        if type(value) is list:
            return any(self.matches(each) for each in value if type(each) is dict)
        is_object = type(value) is dict
        for name, child in self.children:
            if not child.matches(value.get(name, MISSING) if is_object else MISSING):
                return False
        return all(any(choice.matches(value) for choice in choices) for choices in self.choices)

    def explain(self, path: str, value: Any, steps: list[Step]) -> bool:
        if type(value) is list:
            holds = self.matches(value)
            steps.append(Step(path, "one element matches all that is below", shown(value), holds))
            return holds
        is_object = type(value) is dict
        found = [
            child.explain(f"{path}.{name}", value.get(name, MISSING) if is_object else MISSING, steps)
            for name, child in self.children
        ]
        for choices in self.choices:
            found.append(_explain_choices(f"{path}.{_OR}", [each.matches(value) for each in choices], steps))
        return all(found)


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_root",)

    def __init__(self, text: str) -> None:
        """text: JSON. Raises `InvalidRule`."""
        if len(text.encode()) > MAX_PATTERN:
            raise InvalidRule(f"pattern: it has at most {MAX_PATTERN} bytes")
        try:
            pattern = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidRule(f"pattern: it is not JSON: {error}") from error
        if not isinstance(pattern, dict):
            raise InvalidRule(f"pattern: it is a JSON object whose names are {_FIELDS}")
        self._root = _Node("", pattern, 1)

    def matches(self, event: Event) -> bool:
        return _matches_event(self._root, event)

    def explain(self, event: Event) -> list[Step]:
        """Each condition of the pattern, and whether it holds for an event. All hold if, and only if, it matches."""
        steps: list[Step] = []
        _explain_event(self._root, event, steps)
        return steps


def _matches_event(node: _Node, event: Event) -> bool:
    for name, child in node.children:
        if not child.matches(event.field(name)):
            return False
    return all(any(_matches_event(choice, event) for choice in choices) for choices in node.choices)


def _explain_event(node: _Node, event: Event, steps: list[Step]) -> None:
    for name, child in node.children:
        child.explain(name, event.field(name), steps)
    for choices in node.choices:
        _explain_choices(_OR, [_matches_event(choice, event) for choice in choices], steps)


def _explain_choices(path: str, found: list[bool], steps: list[Step]) -> bool:
    text = ", ".join(f"number {number} {'matches' if each else 'does not'}" for number, each in enumerate(found, 1))
    steps.append(Step(path, f"one of {len(found)} patterns matches", text, any(found)))
    return any(found)


def shown(value: Any) -> str:
    """A value of an event, for people."""
    if value is MISSING:
        return "not there"
    try:
        text = orjson.dumps(value, default=str).decode()
    except TypeError as error:
        text = f"cannot be shown: {error}"
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


# --- alternatives


def _test_of(path: str, alternative: Any) -> Test:
    """The test of an alternative that is no text. Raises `InvalidRule`."""
    if isinstance(alternative, dict):
        if len(alternative) != 1:
            raise InvalidRule(f"pattern: {path}: an alternative has one name of {', '.join(_MATCHERS)}")
        ((name, argument),) = alternative.items()
        build = _MATCHERS.get(name)
        if build is None:
            raise InvalidRule(f"pattern: {path}: there is no matcher {name!r}; there are {', '.join(_MATCHERS)}")
        return build(f"{path}.{name}", argument)
    if isinstance(alternative, list):
        raise InvalidRule(f"pattern: {path}: an alternative is no list")
    return _equals(alternative)


def _equals(wanted: Any) -> Test:
    """Equal, as JSON has it: 1 and 1.0 are, 1 and true are not."""
    is_bool = isinstance(wanted, bool)
    return lambda value: value == wanted and isinstance(value, bool) is is_bool


def _text(path: str, argument: Any) -> str:
    if not isinstance(argument, str) or not argument:
        raise InvalidRule(f"pattern: {path} has a text")
    return argument


def _prefix(path: str, argument: Any) -> Test:
    if isinstance(argument, dict):
        text = _ignoring_case(path, argument)
        return lambda value: type(value) is str and value[: len(text)].casefold() == text
    text = _text(path, argument)
    return lambda value: type(value) is str and value.startswith(text)


def _suffix(path: str, argument: Any) -> Test:
    if isinstance(argument, dict):
        text = _ignoring_case(path, argument)
        return lambda value: type(value) is str and value[-len(text) :].casefold() == text
    text = _text(path, argument)
    return lambda value: type(value) is str and value.endswith(text)


def _ignoring_case(path: str, argument: dict[str, Any]) -> str:
    if set(argument) != {"equals-ignore-case"}:
        raise InvalidRule(f'pattern: {path} has a text, or {{"equals-ignore-case": text}}')
    return _text(path, argument["equals-ignore-case"]).casefold()


def _equals_ignore_case(path: str, argument: Any) -> Test:
    texts = frozenset(_text(path, each).casefold() for each in (argument if isinstance(argument, list) else [argument]))
    return lambda value: type(value) is str and value.casefold() in texts


def _wildcard(path: str, argument: Any) -> Test:
    """`*` stands for any text; `\\*` is a star, and `\\\\` a backslash."""
    text = _text(path, argument)
    like: list[str] = []
    at = 0
    while at < len(text):
        mark = text[at]
        if mark == "\\":
            at += 1
            if at == len(text) or text[at] not in "*\\":
                raise InvalidRule(f"pattern: {path}: behind a backslash comes * or another backslash")
            mark = text[at]
        elif mark == "*":
            mark = "%"
            like.append(mark)
            at += 1
            continue
        like.append("|" + mark if mark in "%_|" else mark)
        at += 1
    try:
        pattern = pattern_of("".join(like), "|")
    except ValueError as error:
        raise InvalidRule(f"pattern: {path}: {error}") from error
    return lambda value: type(value) is str and pattern.matches(value)


_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "=": lambda value, limit: value == limit,
    "!=": lambda value, limit: value != limit,
    "<": lambda value, limit: value < limit,
    "<=": lambda value, limit: value <= limit,
    ">": lambda value, limit: value > limit,
    ">=": lambda value, limit: value >= limit,
}


def _is_number(value: Any) -> bool:
    return type(value) is float or type(value) is int


def _numeric(path: str, argument: Any) -> Test:
    form = f'pattern: {path} is a comparison or a range, such as [">", 0, "<=", 5]'
    if not isinstance(argument, list) or len(argument) not in (2, 4):
        raise InvalidRule(form)
    pairs = list(zip(argument[::2], argument[1::2], strict=True))
    if not all(isinstance(name, str) and name in _COMPARISONS and _is_number(limit) for name, limit in pairs):
        raise InvalidRule(form)
    (first, low), *more = [(_COMPARISONS[name], limit) for name, limit in pairs]
    if not more:
        return lambda value: _is_number(value) and first(value, low)
    second, high = more[0]
    return lambda value: _is_number(value) and first(value, low) and second(value, high)


def _cidr(path: str, argument: Any) -> Test:
    try:
        network = ip_network(_text(path, argument), strict=False)
    except ValueError as error:
        raise InvalidRule(f"pattern: {path}: {error}") from error

    def test(value: Any) -> bool:
        if type(value) is not str or len(value) > 45:
            return False
        try:
            return ip_address(value) in network
        except ValueError:
            return False

    return test


def _exists(path: str, argument: Any) -> Test:
    if not isinstance(argument, bool):
        raise InvalidRule(f"pattern: {path} is true or false")
    return lambda _value: argument


def _anything_but(path: str, argument: Any) -> Test:
    if isinstance(argument, dict):
        if len(argument) != 1 or next(iter(argument)) not in ("prefix", "suffix", "wildcard", "equals-ignore-case"):
            raise InvalidRule(f"pattern: {path} has values, or a prefix, suffix, wildcard or equals-ignore-case")
        ((name, below),) = argument.items()
        tests = [_MATCHERS[name](path, each) for each in (below if isinstance(below, list) else [below])]
        return lambda value: not any(test(value) for test in tests)
    values = argument if isinstance(argument, list) else [argument]
    if not values or not all(each is None or isinstance(each, str | int | float) for each in values):
        raise InvalidRule(f"pattern: {path} has one or more texts, numbers, booleans or null")
    texts = frozenset(each for each in values if isinstance(each, str))
    others = [_equals(each) for each in values if not isinstance(each, str)]
    return lambda value: not (value in texts if type(value) is str else any(test(value) for test in others))


_MATCHERS: Final[dict[str, Callable[[str, Any], Test]]] = {
    "prefix": _prefix,
    "suffix": _suffix,
    "anything-but": _anything_but,
    "equals-ignore-case": _equals_ignore_case,
    "numeric": _numeric,
    "exists": _exists,
    "cidr": _cidr,
    "wildcard": _wildcard,
}
