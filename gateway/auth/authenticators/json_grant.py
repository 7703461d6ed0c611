"""Grants from JSON: the claims of a token, and the answer of a service. Both come from elsewhere, so all is checked."""

import math
from typing import Final

from gateway.auth.authenticators.authenticator import Grant
from gateway.auth.rules.roles import MAX_ROLES_OF_USER
from gateway.auth.rules.rule_text import RuleError, parse_rule
from store.api import Rule

_MAX_RULES: Final = 64
_MAX_NAME: Final = 1024  # bytes


class GrantError(ValueError):
    """A claim or a field has a value that it cannot have. The text says which."""


def grant_of(user: object, roles: object, rules: object, is_super: object, expires: object) -> Grant:
    """A grant from JSON values; None stands for a missing one. Raises GrantError."""
    if not isinstance(user, str) or not is_user_name(user):
        raise GrantError("there is no valid user name")
    if not isinstance(is_super, bool | None):
        raise GrantError("whether it is a super user is true or false")
    if not isinstance(expires, int | float | None) or isinstance(expires, bool):
        raise GrantError("the time of its end is no number")
    end = math.inf if expires is None else float(expires)
    if math.isnan(end):
        raise GrantError("the time of its end is no number")
    return Grant(user.encode(), _roles(roles), _rules(rules), bool(is_super), end)


def is_user_name(text: str) -> bool:
    """Whether a user may have this name."""
    return text.isprintable() and 0 < len(text.encode(errors="replace")) <= _MAX_NAME


def _roles(value: object) -> tuple[bytes, ...]:
    names = _texts("roles", value, MAX_ROLES_OF_USER)
    if not all(map(is_user_name, names)):
        raise GrantError("a role has an invalid name")
    return tuple(dict.fromkeys(name.encode() for name in names))


def _rules(value: object) -> tuple[Rule, ...]:
    try:
        return tuple(parse_rule(text) for text in _texts("rules", value, _MAX_RULES))
    except (RuleError, UnicodeEncodeError) as error:
        raise GrantError(f"a rule is invalid: {error}") from error


def _texts(what: str, value: object, most: int) -> list[str]:
    """A list of texts; a text is a list of one, and None of none. Raises GrantError."""
    found = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise GrantError(f"the {what} are no list of texts")
    if len(found) > most:
        raise GrantError(f"there are more than {most} {what}")
    return found
