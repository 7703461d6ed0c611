"""The table of docs/management.md: every method of the management surface with its way and its rights."""

from typing import Final

from gateway.management.methods import METHODS, Method
from gateway.management.proto.options_pb2 import PUB, SUB, TOPIC, Action, Kind, Right
from tests.openapi.description import OF_USERS, right_text
from tests.openapi.protos import ROOT

PAGE: Final = ROOT / "docs/management.md"
_BEGIN: Final = "<!-- table of rights: written by `make proto` -->\n"
_SHORT: Final = {PUB: "publish", SUB: "subscribe"}
_END: Final = "<!-- end of the table -->\n"


def table() -> str:
    """The table, in Markdown."""
    lines = ["| method | HTTP | right | rule that gives it |", "| --- | --- | --- | --- |"]
    lines += [_line(method) for method in METHODS]
    return "\n".join(lines) + "\n"


def within_marks(page: str) -> str:
    """The part of the page that is the table."""
    return page.partition(_BEGIN)[2].partition(_END)[0]


def with_table(page: str) -> str:
    """The page with the table as it should be."""
    before, begin, rest = page.partition(_BEGIN)
    return before + begin + table() + _END + rest.partition(_END)[2]


def _line(method: Method) -> str:
    rights = "<br>".join(right_text(right) for right in method.rights) or OF_USERS
    rules = "<br>".join(f"`{_rule(right)}`" for right in method.rights) or "none is needed"
    return f"| `{method.service}.{method.name}` | `{method.verb} {method.path}` | {rights} | {rules} |"


def _rule(right: Right) -> str:
    kind = Kind.Name(right.kind).lower()
    name = right.name or (right.field.upper() if right.field else "TOPIC" if right.each else "")
    name += "/#" if right.below else ""
    if right.kind == TOPIC and right.action in _SHORT:
        return f"allow {_SHORT[right.action]} {name or '#'}"
    return f"allow {Action.Name(right.action)} {kind}:{name or ('#' if right.kind == TOPIC else '*')}"
