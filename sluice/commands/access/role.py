"""`sluice role`: rules that users have together."""

from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, CommandError, Subparsers, add_actions, declare, print_result
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice role set operator 'allow * group:*' --inherits reader"


def add(subparsers: Subparsers) -> None:
    about = "manage roles, which are rules that users have together"
    actions = add_actions(declare(subparsers, "role", about, EXAMPLE))
    setting = declare(actions, "set", "add a role, or replace its rules and what it inherits", EXAMPLE, _set)
    setting.add_argument("name", metavar="NAME", help="the name of the role")
    setting.add_argument("rules", nargs="*", metavar="RULE", help="a rule, as for `sluice acl set`")
    text = "roles whose rules count behind its own, with commas"
    setting.add_argument("--inherits", default="", metavar="ROLES", help=text)
    removing = declare(actions, "remove", "remove a role that nobody has", "sluice role remove operator", _remove)
    removing.add_argument("name", metavar="NAME", help="the name of the role")
    listing = declare(actions, "list", "list the roles with their rules", "sluice role list", _list)
    for each in (setting, removing, listing):
        management.add_arguments(each)


def names_of(text: str) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def shown(role: "pb.Role") -> str:
    """A role with its rules, as lines."""
    inherits = f" (inherits {', '.join(role.inherits)})" if role.inherits else ""
    return "\n".join([f"role {role.name}{inherits}:", *(f"  {rule}" for rule in role.rules)])


def _set(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    inherits = names_of(arguments.inherits)
    if not arguments.rules and not inherits:
        raise CommandError("a role has rules, or inherits some: give one, or use `role remove`")
    request = pb.Role(name=arguments.name, rules=arguments.rules, inherits=inherits)
    role = management.ask(arguments, "SetRole", request, pb.Role)
    _print(arguments, role)
    return 0


def _remove(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    management.ask(arguments, "DeleteRole", pb.DeleteRoleRequest(name=arguments.name), pb.DeleteRoleReply)
    print_result(arguments, {"role": arguments.name, "done": "removed"}, f"removed {arguments.name}")
    return 0


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        for role in management.pages(link, "ListRoles", pb.ListRolesRequest(), pb.ListRolesReply, 1000, "roles"):
            _print(arguments, role)
    return 0


def _print(arguments: Arguments, role: "pb.Role") -> None:
    facts = {"role": role.name, "inherits": list(role.inherits), "rules": list(role.rules)}
    print_result(arguments, facts, shown(role))
