"""Patterns: which events a rule is about. The form is that of Amazon EventBridge's event patterns.

A pattern is a JSON object. Each of its names is a field of the event (`Event.field`), or of an object in it; all of
them have to match. A name has an object, which goes deeper, or a list of alternatives, one of which has to match:

    {"levels": {"2": ["hall", {"prefix": "room-"}]}, "data": {"temp": [{"numeric": [">", 30, "<=", 80]}]}}

An alternative is a text, a number, true, false or null, which the value has to equal, or an object with one of the
names in `_MATCHERS`. If the value is an array, one of its elements has to match. `$or` in place of a name has a list of
patterns, one of which has to match. What is not there matches `{"exists": false}` alone.

A pattern is compiled once. No matcher uses regular expressions. The looks at arrays and at texts are counted
(`Event.spend`), so that many alternatives for a large event end with an error.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final

from gateway.events.errors import InvalidRule
from gateway.events.event import MISSING, Event
from gateway.events.json_values import read_json, write_json
from matcher.selector.like import pattern_of

MAX_PATTERN: Final = 16_384  # bytes of JSON
_MAX_DEPTH: Final = 16
_MAX_SHOWN: Final = 200  # characters of a value in an explanation
_OR: Final = "$or"
_FIELDS: Final = "data, enriched, topic, levels, properties, client, qos, retain, or an attribute of CloudEvents"

_WORK_OF_CIDR: Final = 32  # addresses are parsed by Python code

Test = Callable[[Any], bool]  # of one value that is no array


@dataclass(slots=True, frozen=True)
class Step:
    """One condition on an event, and whether it holds."""

    path: str
    condition: str
    value: str  # of the event there
    holds: bool


class _Values:
    """Texts, numbers, booleans and null, found at once, however many there are.

    As JSON has it, 1 and 1.0 are equal, and 1 and true are not."""

    __slots__ = ("_constants", "_numbers", "_texts")

    def __init__(self, values: Iterable[Any]) -> None:
        some = list(values)
        self._texts = frozenset(each for each in some if type(each) is str)
        self._numbers = frozenset(each for each in some if _is_number(each))
        self._constants = frozenset(each for each in some if each is None or type(each) is bool)

    def has(self, value: Any) -> bool:
        if type(value) is str:
            return value in self._texts
        if _is_number(value):
            return value in self._numbers
        return (value is None or type(value) is bool) and value in self._constants


class _Leaf:
    """Alternatives for the value at a path."""

    __slots__ = ("_accepts_missing", "_looks", "_tests", "_text", "_values", "_work")

    def __init__(self, path: str, alternatives: list[Any]) -> None:
        if not alternatives:
            raise InvalidRule(f"pattern: {path} has no alternatives, so that nothing would match")
        self._text = write_json(alternatives).decode()
        self._values = _Values(each for each in alternatives if not isinstance(each, dict | list))
        self._accepts_missing = any(
            each == {"exists": False} and each["exists"] is False for each in alternatives if isinstance(each, dict)
        )
        others = [each for each in alternatives if isinstance(each, dict | list)]
        self._tests = [_test_of(path, each) for each in others]
        self._looks = sum(map(_looks_of, others))  # at a text, at most
        self._work = 1 + self._looks + sum(_WORK_OF_CIDR for each in others if "cidr" in each)  # for one value

    def matches(self, event: Event, value: Any) -> bool:
        if value is MISSING:
            return self._accepts_missing
        if type(value) is list:
            event.spend(len(value) * self._work)
            for each in value:  # noqa: SIM110  faster than a generator
                if self._matches_one(event, each):
                    return True
            return False
        return self._matches_one(event, value)

    def _matches_one(self, event: Event, value: Any) -> bool:
        if self._values.has(value):
            return True
        if type(value) is str:
            event.look_at(value, self._looks)
        for test in self._tests:  # noqa: SIM110  faster than a generator
            if test(value):
                return True
        return False

    def explain(self, event: Event, path: str, value: Any, steps: list[Step]) -> bool:
        holds = self.matches(event, value)
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

    def matches(self, event: Event, value: Any) -> bool:
        if type(value) is list:
            event.spend(len(value))
            for each in value:  # noqa: SIM110  faster than a generator
                if type(each) is dict and self.matches(event, each):
                    return True
            return False
        is_object = type(value) is dict
        for name, child in self.children:
            if not child.matches(event, value.get(name, MISSING) if is_object else MISSING):
                return False
        return all(any(choice.matches(event, value) for choice in choices) for choices in self.choices)

    def explain(self, event: Event, path: str, value: Any, steps: list[Step]) -> bool:
        if type(value) is list:
            holds = self.matches(event, value)
            steps.append(Step(path, "one element matches all that is below", shown(value), holds))
            return holds
        is_object = type(value) is dict
        found = [
            child.explain(event, f"{path}.{name}", value.get(name, MISSING) if is_object else MISSING, steps)
            for name, child in self.children
        ]
        for choices in self.choices:
            found.append(_explain_choices(f"{path}.{_OR}", [each.matches(event, value) for each in choices], steps))
        return all(found)


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_root",)

    def __init__(self, text: str) -> None:
        """text: JSON. Raises `InvalidRule`."""
        if len(text.encode()) > MAX_PATTERN:
            raise InvalidRule(f"pattern: it has at most {MAX_PATTERN} bytes")
        try:
            pattern = read_json(text.encode())
        except ValueError as error:
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
        if not child.matches(event, event.field(name)):
            return False
    return all(any(_matches_event(choice, event) for choice in choices) for choices in node.choices)


def _explain_event(node: _Node, event: Event, steps: list[Step]) -> None:
    for name, child in node.children:
        child.explain(event, name, event.field(name), steps)
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
        text = write_json(value).decode()
    except ValueError as error:
        text = f"cannot be shown: {error}"
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


# --- alternatives


def _test_of(path: str, alternative: Any) -> Test:
    """The test of an alternative that is no value. Raises `InvalidRule`."""
    if not isinstance(alternative, dict):
        raise InvalidRule(f"pattern: {path}: an alternative is no list")
    if len(alternative) != 1:
        raise InvalidRule(f"pattern: {path}: an alternative has one name of {', '.join(_MATCHERS)}")
    ((name, argument),) = alternative.items()
    build = _MATCHERS.get(name)
    if build is None:
        raise InvalidRule(f"pattern: {path}: there is no matcher {name!r}; there are {', '.join(_MATCHERS)}")
    return build(f"{path}.{name}", argument)


def _looks_of(alternative: Any) -> int:
    """How often an alternative looks at a text, at most."""
    below = alternative.get("anything-but")
    texts = next(iter(below.values()), None) if isinstance(below, dict) else None
    return len(texts) if isinstance(texts, list) else 1


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
    some = argument if isinstance(argument, list) else [argument]
    if not some or not all(each is None or isinstance(each, str | int | float) for each in some):
        raise InvalidRule(f"pattern: {path} has one or more texts, numbers, booleans or null")
    values = _Values(some)
    return lambda value: not values.has(value)


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
