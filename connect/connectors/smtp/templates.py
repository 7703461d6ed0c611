"""Templates of mails: texts with Jinja expressions, in a sandbox.

A template sees a message as JSON values. It has `{{ … }}`, `{% if %}`, numbers with operators, and some filters. There
are no loops, no calls and no texts that are multiplied: the work for a mail is at most the size of its template times
that of its message, and both are bounded.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from connect.api import DataError

MAX_TEMPLATE: Final = 8192  # characters
MAX_OUTPUT: Final = 256 << 10  # characters
FIELDS: Final = (
    "topic",
    "levels",
    "key",
    "value",
    "headers",
    "stored_at",
    "publisher",
    "partition",
    "offset",
    "position",
)
_FILTERS: Final = (
    *("abs", "default", "first", "float", "int", "last", "length", "lower", "max", "min", "round", "title"),
    *("trim", "upper"),
)
_TESTS: Final = (
    *("defined", "undefined", "none", "number", "string", "mapping", "sequence", "boolean", "integer", "float", "in"),
    *("==", "!=", "<", "<=", ">", ">=", "eq", "ne", "lt", "le", "gt", "ge"),
)
_NODES: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem),
    *(
        nodes.Filter,
        nodes.Test,
        nodes.CondExpr,
        nodes.Compare,
        nodes.Operand,
        nodes.And,
        nodes.Or,
        nodes.Not,
        nodes.Add,
    ),
    *(nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos, nodes.If, nodes.Keyword),
)


class _Environment(ImmutableSandboxedEnvironment):
    """An environment whose templates see JSON values alone."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%"))

    def __init__(self) -> None:
        # What is not there fails, unless it has the filter `default`.
        super().__init__(undefined=StrictUndefined, finalize=_shown, auto_reload=False, cache_size=0)
        self.filters = {name: self.filters[name] for name in _FILTERS} | {"tojson": _to_json}
        tests: dict[str, Any] = dict(self.tests)
        self.tests = {name: tests[name] for name in _TESTS}
        self.globals = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, dict) and argument in obj:
            return obj[argument]
        if isinstance(obj, list) and isinstance(argument, int) and -len(obj) <= argument < len(obj):
            return obj[argument]
        return obj if isinstance(obj, Undefined) else self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, Undefined):
                str(value)  # fails, and says what is not there
            if not isinstance(value, int | float):
                raise SecurityError(f"{operator} is for numbers")
        return super().call_binop(context, operator, left, right)


class Template:
    """A compiled template."""

    __slots__ = ("_template",)

    def __init__(self, text: str) -> None:
        """Raises ValueError."""
        if len(text) > MAX_TEMPLATE:
            raise ValueError(f"a template has at most {MAX_TEMPLATE} characters")
        try:
            tree = _ENVIRONMENT.parse(text)
            for node in tree.find_all(nodes.Node):
                if not isinstance(node, _NODES):
                    raise ValueError(f"line {node.lineno}: {type(node).__name__.lower()} is not part of templates here")
                if isinstance(node, nodes.Name) and node.name not in FIELDS:
                    raise ValueError(f"there is no {node.name!r}: there are {', '.join(FIELDS)}")
            self._template = _ENVIRONMENT.from_string(tree)
        except (TemplateError, RecursionError) as error:
            raise ValueError(str(error)) from None

    def render(self, fields: Mapping[str, Any]) -> str:
        """The text for the `FIELDS` of a message. Raises `DataError`."""
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.root_render_func(self._template.new_context(dict(fields))):
                size += len(part)
                if size > MAX_OUTPUT:
                    raise DataError(f"the output of the template has more than {MAX_OUTPUT} characters")
                parts.append(part)
        except (TemplateError, TypeError, ValueError, ArithmeticError, RecursionError, AttributeError) as error:
            raise DataError(f"the template fails: {error}") from None
        return "".join(parts)


def _shown(value: Any) -> Any:
    """What `{{ … }}` puts into the text: texts as they are, all else as JSON."""
    return value if isinstance(value, str | Undefined) else _to_json(value)


def _to_json(value: Any) -> str:
    if isinstance(value, Undefined):
        return str(value)  # fails, and says what is not there
    return orjson.dumps(value).decode()


_ENVIRONMENT: Final = _Environment()
