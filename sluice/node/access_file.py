"""Users' roles and rules as a TOML file: written from a node, compared with it, and put in force.

    everybody = ["allow subscribe news/#"]

    [roles."operator"]
    inherits = ["reader"]
    rules = ["allow * group:*"]

    [users."alice"]
    roles = ["operator"]
    rules = ["deny publish home/lock"]

A user may also have `disabled = true` and `super = true`. Passwords are not in the file.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.auth.rules.rule_text import RuleError, parse_rule, rule_text
from gateway.management.proto import management_pb2 as pb
from sluice.console.command import CommandError
from sluice.node import management
from sluice.node.management import ManagementLink

_PAGE: Final = 1000
_LISTS: Final = {"users": ("rules", "roles"), "roles": ("rules", "inherits")}
_SWITCHES: Final = {"users": ("disabled", "super"), "roles": ()}


@dataclass(slots=True)
class Entry:
    """What a user or a role has."""

    rules: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # roles of a user; what a role inherits
    disabled: bool = False
    is_super: bool = False

    def lines(self, kind: str) -> list[str]:
        """As lines of text that can be compared."""
        word = "role" if kind == "users" else "inherits"
        switches = ["disabled"] * self.disabled + ["super"] * self.is_super
        return [*switches, *[f"{word} {name}" for name in self.names], *self.rules]


@dataclass(slots=True)
class AccessFile:
    """Roles and rules of a node."""

    everybody: list[str] = field(default_factory=list)
    users: dict[str, Entry] = field(default_factory=dict)
    roles: dict[str, Entry] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Change:
    """A user, a role, or everybody (""), with what changes."""

    kind: str  # users, roles, or everybody
    name: str
    after: Entry
    is_new: bool
    is_removed: bool
    difference: list[str]  # lines that begin with `+ ` or `- `


def read(link: ManagementLink) -> AccessFile:
    """Read what a node has. Raises `CommandError`."""
    found = AccessFile()
    for row in management.pages(link, "ListRules", pb.ListRulesRequest(), pb.ListRulesReply, _PAGE, "rules"):
        if row.user:
            found.users[row.user] = Entry(list(row.rules))
        else:
            found.everybody = list(row.rules)
    for user in management.pages(link, "ListUsers", pb.ListUsersRequest(), pb.ListUsersReply, _PAGE, "users"):
        if user.roles or user.disabled or user.super_user:
            entry = found.users.setdefault(user.name, Entry())
            entry.names, entry.disabled, entry.is_super = list(user.roles), user.disabled, user.super_user
    for role in management.pages(link, "ListRoles", pb.ListRolesRequest(), pb.ListRolesReply, _PAGE, "roles"):
        found.roles[role.name] = Entry(list(role.rules), list(role.inherits))
    return found


def parse(text: str) -> AccessFile:
    """Parse a file. Raises `CommandError`."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"the file is not TOML: {error}") from error
    _refuse_others(tree, ("everybody", "users", "roles"), "")
    found = AccessFile(_rules(tree.get("everybody", []), "everybody"))
    for kind, entries in (("users", found.users), ("roles", found.roles)):
        table = tree.get(kind, {})
        if not isinstance(table, dict):
            raise CommandError(f"{kind} is not a table")
        for name, fields in table.items():
            entries[name] = _entry(kind, fields, f"{kind}.{name}")
    return found


def text_of(access: AccessFile) -> str:
    """The file, sorted by name."""
    lines = [f"everybody = {_list(access.everybody)}"]
    for kind, entries, names in (("roles", access.roles, "inherits"), ("users", access.users, "roles")):
        for name, entry in sorted(entries.items()):
            lines += ["", f"[{kind}.{_string(name)}]"]
            lines += ["disabled = true"] * entry.disabled + ["super = true"] * entry.is_super
            lines += [f"{names} = {_list(entry.names)}"] if entry.names else []
            lines += [f"rules = {_list(entry.rules)}"] if entry.rules else []
    return "\n".join(lines) + "\n"


def changes(now: AccessFile, wanted: AccessFile, prunes: bool) -> list[Change]:
    """What has to change, roles first. prunes: what only the node has is removed."""
    found = []
    for kind, before, after in (("roles", now.roles, wanted.roles), ("users", now.users, wanted.users)):
        for name in sorted({*after, *(before if prunes else ())}):
            is_removed = name not in after
            old, new = before.get(name, Entry()), after.get(name, Entry())
            is_new = name not in before
            lines = _difference(old.lines(kind), new.lines(kind))
            if lines or (kind == "roles" and (is_new or is_removed)):
                found.append(Change(kind, name, new, is_new, is_removed, lines))
    lines = _difference(now.everybody, wanted.everybody)
    if lines:
        found.append(Change("everybody", "", Entry(wanted.everybody), False, False, lines))
    return found


def apply(link: ManagementLink, wanted: list[Change]) -> None:
    """Put changes in force, one by one. A role is there before another one inherits it. Raises `CommandError`."""
    roles = [each for each in wanted if each.kind == "roles"]
    for change in roles:
        if change.is_new:
            link.call("SetRole", pb.Role(name=change.name, rules=change.after.rules), pb.Role)
    for change in roles:
        role = pb.Role(name=change.name, rules=change.after.rules, inherits=change.after.names)
        if not change.is_removed or change.difference:
            link.call("SetRole", role, pb.Role)
    for change in wanted:
        if change.kind == "users":
            entry = change.after
            user = pb.UpdateUserRequest(name=change.name, disabled=entry.disabled, super_user=entry.is_super)
            user.roles.names.extend(entry.names)
            user.roles.SetInParent()
            link.call("UpdateUser", user, pb.User)
        if change.kind != "roles":
            rules = pb.SetRulesRequest(user=change.name, rules=change.after.rules)
            link.call("SetRules", rules, pb.SetRulesReply)
    for change in roles:
        if change.is_removed:
            link.call("DeleteRole", pb.DeleteRoleRequest(name=change.name), pb.DeleteRoleReply)


def _entry(kind: str, fields: object, where: str) -> Entry:
    if not isinstance(fields, dict):
        raise CommandError(f"{where} is not a table")
    lists, switches = _LISTS[kind], _SWITCHES[kind]
    _refuse_others(fields, (*lists, *switches), where)
    for name in switches:
        if not isinstance(fields.get(name, False), bool):
            raise CommandError(f"{where}.{name} is true or false")
    names = _texts(fields.get(lists[1], []), f"{where}.{lists[1]}")
    rules = _rules(fields.get("rules", []), f"{where}.rules")
    return Entry(rules, names, fields.get("disabled", False), fields.get("super", False))


def _refuse_others(fields: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in fields:
        if name not in known:
            raise CommandError(f"unknown key {name!r}{f' in {where}' if where else ''}: there are {', '.join(known)}")


def _texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CommandError(f"{where} is not a list of texts")
    return value


def _rules(value: object, where: str) -> list[str]:
    """The rules as the node writes them."""
    try:
        return [rule_text(parse_rule(text)) for text in _texts(value, where)]
    except RuleError as error:
        raise CommandError(f"{where}: {error}") from error


def _difference(before: list[str], after: list[str]) -> list[str]:
    return [line for line in difflib.ndiff(before, after) if line[:2] in ("+ ", "- ")]


def _list(texts: list[str]) -> str:
    if len(texts) < 2:
        return f"[{', '.join(map(_string, texts))}]"
    return "\n".join(["[", *_indented(texts), "]"])


def _indented(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield f"  {_string(text)},"


def _string(text: str) -> str:
    """A basic string of TOML, which has the escapes of JSON. U+007F must be escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
