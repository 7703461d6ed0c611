"""Templates: texts with Jinja expressions, in a sandbox.

A template sees the fields of an event (`Event.field`). It may have `{{ … }}`, `{% if %}`, `{% for %}` and some filters.
All that could make its work or its output grow beyond bounds is refused when it is compiled: variables, macros, blocks,
calls, texts that are multiplied. The rounds of loops are counted, the output is measured, and what filters, tests and
comparisons look at is added up: one look at a large event is cheap, and one in each round of a loop is not.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import MISSING, Event
from gateway.events.json_values import write_json

MAX_TEMPLATE: Final = 8192  # characters
MAX_OUTPUT: Final = 256 << 10  # characters
_MAX_ROUNDS: Final = 10_000  # of all loops of one output
_MAX_WORK: Final = 2 << 20  # characters that filters, tests and comparisons look at, for one output
_PART: Final = 4  # of an event: an array or object may have the rest of it, so it counts as this part of it at least
_ELEMENT: Final = 16  # the work of a look at an element, which filters do with Python code
_MAX_LOOPS: Final = 2  # one in another
_SHOWN: Final = 40  # characters in an error
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")  # no UTF-8 has it: what has it cannot be published or looked up
FIELDS: Final = ("data", "enriched", "topic", "levels", "properties", "client", "qos", "retain")
_ALL_ATTRIBUTES: Final = "attributes"
_ATTRIBUTES: Final = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema", _ALL_ATTRIBUTES)
_KNOWN: Final = dict.fromkeys((*FIELDS, *_ATTRIBUTES))  # names that templates have, in their order
_KEPT: Final = (
    *("abs", "default", "d", "first", "float", "int", "last", "length", "count", "lower", "max", "min", "round"),
    *("sort", "string", "sum", "title", "trim", "truncate", "unique", "upper", "urlencode", "capitalize", "reverse"),
    *("list", "join"),
)
_OF_LOOPS: Final = ("index", "index0", "first", "last", "length", "revindex", "revindex0")
_PASSED: Final = "jinja_pass_arg"  # marks filters of Jinja that take the environment, too
_OF_KINDS: Final = (
    *("defined", "undefined", "none", "number", "string", "mapping", "sequence", "boolean", "true", "false"),
    *("integer", "float"),
)
_TESTS: Final = (
    *("in", "even", "odd", "divisibleby"),
    *("eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "le", "<=", "gt", ">", "greaterthan", "ge", ">="),
)
_ALLOWED: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict),
    *(nodes.Pair, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.CondExpr, nodes.Compare),
    *(nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv),
    *(nodes.Mod, nodes.Neg, nodes.Pos, nodes.If, nodes.For, nodes.Keyword),
)


class _Environment(ImmutableSandboxedEnvironment):
    """An environment whose templates see JSON values alone."""

    intercepted_binops = frozenset(("+", "*", "%"))

    def __init__(self) -> None:
        # What is not there fails, unless it has the filter `default`.
        super().__init__(undefined=StrictUndefined, finalize=_shown, auto_reload=False, cache_size=0)
        self.rounds = 0  # of loops, of the output that is being made
        self.work = 0  # done for the output that is being made
        self.part = 0  # of the event that it is made from, see `_PART`
        self.filters = {name: self._bounded(name, self.filters[name]) for name in _KEPT}
        self.filters |= {"tojson": self._bounded("tojson", _to_json), "replace": self._bounded("replace", _replace)}
        self.filters |= {_ROUNDS: self._counted, _LOOK: self._looked_at}
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: tests[name] for name in _OF_KINDS}
        self.tests |= {name: self._bounded(name, tests[name]) for name in _TESTS}
        self.globals = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, dict) and argument in obj:
            return obj[argument]
        if isinstance(obj, list | str) and isinstance(argument, int | slice):
            try:
                return obj[argument]
            except IndexError:
                pass
        if isinstance(obj, LoopContext) and argument in _OF_LOOPS:
            return getattr(obj, argument)
        if isinstance(obj, Undefined):
            return obj
        return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            if len(left) + len(right) > MAX_OUTPUT:
                raise SecurityError(f"a text has more than {MAX_OUTPUT} characters")
            self._looked_at(left)
            return left + right
        for value in (left, right):
            if isinstance(value, Undefined):
                str(value)  # fails, and says what is not there
        if not (_is_number(left) and _is_number(right)):
            raise SecurityError(f"{operator} is for numbers, and + for two texts")
        return super().call_binop(context, operator, left, right)

    def _bounded(self, name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or test whose work and result are bounded. Its arguments are parts of the template or of the event,
        or were results."""
        is_cheap = name in _CHEAP

        def bounded(*arguments: Any, **named: Any) -> Any:
            if not is_cheap:
                for each in (*arguments, *named.values()):
                    self._looked_at(each)
            if name == "sum" and not _is_number(named.get("start", arguments[3] if len(arguments) > 3 else 0)):
                raise SecurityError("sum is for numbers")
            found = apply(*arguments, **named)
            if isinstance(found, str) and len(found) > MAX_OUTPUT:
                raise SecurityError(f"the result of a filter has more than {MAX_OUTPUT} characters")
            return found

        if hasattr(apply, _PASSED):
            setattr(bounded, _PASSED, getattr(apply, _PASSED))
        return bounded

    def _looked_at(self, value: Any) -> Any:
        """Count a value that is about to be looked at. Returns it."""
        if isinstance(value, str):
            self.work += len(value)
        elif isinstance(value, list | dict | tuple):
            self.work += max(len(value) * _ELEMENT, self.part)
        elif isinstance(value, Iterator):
            self.work += self.part
        if self.work > _MAX_WORK:
            raise SecurityError("it looks at large parts of the event too often")
        return value

    def _counted(self, values: Any) -> Iterator[Any]:
        """The values of a loop, as long as there may be more rounds."""
        if not isinstance(values, list | dict | tuple | str) and not isinstance(values, Iterator):
            raise SecurityError("a loop is over an array, the names of an object, or the characters of a text")
        for value in values:
            self.rounds += 1
            if self.rounds > _MAX_ROUNDS:
                raise SecurityError(f"its loops have more than {_MAX_ROUNDS} rounds")
            yield value


# Filters that are put into templates; no template can name them.
_ROUNDS: Final = "counted rounds"  # behind what each loop is over
_LOOK: Final = "counted look"  # behind what is compared, and what a slice is taken from
_CHEAP: Final = ("default", "d", "first", "last", "length", "count")  # whose work does not depend on sizes


class Template:
    """A compiled template."""

    __slots__ = ("_parts", "_template", "fields")

    def __init__(self, text: str, what: str = "template") -> None:
        """what: it is, for errors. Raises `InvalidRule`."""
        if len(text) > MAX_TEMPLATE:
            raise InvalidRule(f"{what}: it has at most {MAX_TEMPLATE} characters")
        try:
            tree = _ENVIRONMENT.parse(text)
            self._parts = _parts_of(tree)
            _check(tree, what, 0)
            self._template = _ENVIRONMENT.from_string(tree)
        except (TemplateError, RecursionError) as error:
            raise InvalidRule(f"{what}: {error}") from error
        names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
        bound = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "store"} | {"loop"}
        if names - _KNOWN.keys() - bound:
            missing = sorted(names - _KNOWN.keys() - bound)[0]
            raise InvalidRule(f"{what}: there is no {missing!r}; there are {', '.join(_KNOWN)}")
        self.fields = sorted(names & _KNOWN.keys())  # of the event, that it reads

    def render(self, event: Event) -> str:
        """The output for an event. Raises `EvaluationFailed`."""
        text = None if self._parts is None else _joined(self._parts, event)
        if text is not None:
            return text
        values: dict[str, Any] = {}
        for name in self.fields:
            value = dict(event.attributes) if name == _ALL_ATTRIBUTES else event.field(name)
            if value is not MISSING:
                values[name] = value
        _ENVIRONMENT.rounds = _ENVIRONMENT.work = 0
        _ENVIRONMENT.part = event.size // _PART
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.root_render_func(self._template.new_context(values)):
                size += len(part)
                if size > MAX_OUTPUT:
                    raise EvaluationFailed(f"the output of the template has more than {MAX_OUTPUT} characters")
                parts.append(part)
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError, AttributeError) as error:
            raise EvaluationFailed(f"the template fails: {error}") from error
        return "".join(parts)


def _parts_of(tree: nodes.Template) -> list[str | list[str]] | None:
    """The parts of a template that has texts and fields alone: a text, or the names that lead to a value. None: it has
    more. Most topics are such templates, and Jinja takes several times as long for them."""
    parts: list[str | list[str]] = []
    for output in tree.body:
        if not isinstance(output, nodes.Output):
            return None
        for each in output.nodes:
            part = each.data if isinstance(each, nodes.TemplateData) else _names_of(each)
            if part is None:
                return None
            parts.append(part)
    return parts


def _names_of(node: nodes.Expr) -> list[str] | None:
    """The names of `a.b["c"]`, the first of which is a field; None for another expression."""
    names: list[str] = []
    while not isinstance(node, nodes.Name):
        if isinstance(node, nodes.Getattr):
            name: object = node.attr
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            name = node.arg.value
        else:
            return None
        if not isinstance(name, str):
            return None
        names.append(name)
        node = node.node
    return [node.name, *reversed(names)] if node.name in _KNOWN and node.name != _ALL_ATTRIBUTES else None


def _joined(parts: list[str | list[str]], event: Event) -> str | None:
    """The output of such a template; None if it fails, for a reason that Jinja tells."""
    texts: list[str] = []
    size = 0
    for part in parts:
        text = part
        if not isinstance(part, str):
            value = event.field(part[0])
            for name in part[1:]:
                if not isinstance(value, dict) or name not in value:
                    return None
                value = value[name]
            if value is MISSING:
                return None
            try:
                text = value if isinstance(value, str) else _to_json(value)
            except ValueError:
                return None
        assert isinstance(text, str)
        size += len(text)
        if size > MAX_OUTPUT:
            return None
        texts.append(text)
    return "".join(texts)


def _check(node: nodes.Node, what: str, loops: int) -> None:
    """Check that a template is bounded, and count the rounds of its loops. Raises `InvalidRule`."""
    if not isinstance(node, _ALLOWED):
        name = type(node).__name__.lower()
        raise InvalidRule(f"{what}: line {node.lineno}: {name} is not part of templates here")
    if isinstance(node, nodes.Const) and isinstance(node.value, str) and _SURROGATE.search(node.value):
        raise InvalidRule(
            f"{what}: line {node.lineno}: {ascii(node.value)[:_SHOWN]} has a surrogate, which is no character"
        )
    if isinstance(node, nodes.For):
        if loops == _MAX_LOOPS:
            raise InvalidRule(f"{what}: line {node.lineno}: more than {_MAX_LOOPS} loops in one another")
        if node.recursive:
            raise InvalidRule(f"{what}: line {node.lineno}: a loop is not recursive here")
        loops += 1
    for child in node.iter_child_nodes():
        _check(child, what, loops)
    if isinstance(node, nodes.For):
        node.iter = _filtered(node.iter, _ROUNDS)
    elif isinstance(node, nodes.Compare):
        node.expr = _filtered(node.expr, _LOOK)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _LOOK)
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        node.node = _filtered(node.node, _LOOK)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    """An expression with a filter behind it."""
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _shown(value: Any) -> Any:
    """What `{{ … }}` puts into the output: texts as they are, all else as JSON."""
    return value if isinstance(value, str | Undefined) else _to_json(value)


def _to_json(value: Any) -> str:
    if isinstance(value, Undefined):
        return str(value)  # fails, and says what is not there
    return write_json(list(value) if isinstance(value, Iterator) else value).decode()


def _replace(text: Any, old: str, new: str) -> str:
    whole = str(text)
    if not old or len(whole) + whole.count(old) * len(new) > MAX_OUTPUT:
        raise SecurityError("replace has an empty text, or its result is too long")
    return whole.replace(old, new)


_ENVIRONMENT: Final = _Environment()
