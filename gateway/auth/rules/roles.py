"""The rules that count for a user, in their order: its own, those of its roles, then those for everybody.

A role inherits others: its own rules count first, then those of the roles that it inherits, each with what that
inherits. A role that a user has in two ways counts where it comes first.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from store.api import AccountStore, Role, Rule, UserState

MAX_ROLES: Final = 256  # in the store
MAX_ROLES_OF_USER: Final = 16
MAX_INHERITED: Final = 16  # roles that a role has, directly or not
MAX_DEPTH: Final = 8


class RoleError(ValueError):
    """A role cannot inherit what it should. The message says why."""


async def rules_in_order(
    store: AccountStore, user: bytes, state: UserState, granted: Sequence[Rule] = ()
) -> list[tuple[str, Sequence[Rule]]]:
    """The rules that count for a user, by whose they are: `alice`, `role operator`, `everybody`.

    granted: by an authenticator; they count behind the user's own. Raises StoreError.
    """
    found: list[tuple[str, Sequence[Rule]]] = []
    if user:
        found.append((user.decode(), await store.rules(user)))
    if granted:
        found.append(("the authenticator", granted))
    found += [(f"role {role.name.decode()}", role.rules) for role in await roles_in_order(store, state.roles)]
    found.append(("everybody", await store.rules(b"")))
    return found


async def roles_in_order(store: AccountStore, names: Sequence[bytes]) -> list[Role]:
    """These roles with those that they inherit, as their rules count. A role that is not there is left out."""
    found: dict[bytes, Role] = {}
    left = list(reversed(names))
    while left:
        name = left.pop()
        role = None if name in found else await store.role(name)
        if role is not None:
            found[name] = role
            left += reversed(role.inherits)
    return list(found.values())


def check_roles(inherits: Mapping[bytes, Sequence[bytes]]) -> None:
    """Check what each role inherits. Raises RoleError."""
    for name in inherits:
        above: list[bytes] = []
        _check_path(name, inherits, above)
        if len(all_inherited(name, inherits)) > MAX_INHERITED:
            raise RoleError(f"the role {name.decode()!r} would inherit more than {MAX_INHERITED} roles")


def all_inherited(name: bytes, inherits: Mapping[bytes, Sequence[bytes]]) -> set[bytes]:
    """The roles that a role inherits, directly or not."""
    found: set[bytes] = set()
    left = list(inherits.get(name, ()))
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += inherits.get(each, ())
    return found


def _check_path(name: bytes, inherits: Mapping[bytes, Sequence[bytes]], above: list[bytes]) -> None:
    """Check the roles on the way down from the first of `above` through `name`."""
    if name in above:
        path = " → ".join(each.decode() for each in [*above[above.index(name) :], name])
        raise RoleError(f"a role cannot inherit itself: {path}")
    if len(above) >= MAX_DEPTH:
        raise RoleError(f"the role {above[0].decode()!r} would inherit through more than {MAX_DEPTH} roles")
    above.append(name)
    for each in inherits.get(name, ()):
        _check_path(each, inherits, above)
    above.pop()
