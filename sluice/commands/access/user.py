"""`sluice user`: manage the users that may connect with a password. The node gets only SCRAM keys, no password."""

import getpass
import secrets
import sys
from typing import TYPE_CHECKING, Final

from sluice.commands.access.role import names_of
from sluice.console.command import Arguments, CommandError, Subparsers, add_actions, declare, print_result, within
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice user add alice --data-dir /var/lib/sluice"


def add(subparsers: Subparsers) -> None:
    about = "add, change, remove and list users that connect with a password"
    actions = add_actions(declare(subparsers, "user", about, EXAMPLE))
    for action, summary, work in (
        ("add", "add a user; the password comes from a prompt or the first line of standard input", _add),
        ("passwd", "change the password of a user, and disconnect the user's clients", _change),
        ("remove", "remove a user with its rules and sessions, and disconnect its clients", _remove),
    ):
        one = declare(actions, action, summary, f"sluice user {action} alice --data-dir /var/lib/sluice", work)
        one.add_argument("name", metavar="NAME", help="the user name")
        if work is not _remove:
            text = "iterations of PBKDF2; more make guessing and logging in slower (default: 15000)"
            one.add_argument("--iterations", type=within(4096, 1_000_000), metavar="N", help=text)
        management.add_arguments(one)
    for action, summary in (
        ("disable", "let nobody in as this user, and disconnect its clients"),
        ("enable", "let the user in again"),
    ):
        one = declare(actions, action, summary, f"sluice user {action} alice", _switch)
        one.add_argument("name", metavar="NAME", help="the user name, also of a certificate or an access key")
        one.set_defaults(disables=action == "disable")
        management.add_arguments(one)
    one = declare(
        actions, "roles", "replace the roles of a user", "sluice user roles alice reader,operator", _give_roles
    )
    one.add_argument("name", metavar="NAME", help="the user name, also of a certificate or an access key")
    text = "roles with commas, in the order in which their rules count; an empty text takes all away"
    one.add_argument("roles", metavar="ROLES", help=text)
    management.add_arguments(one)
    one = declare(
        actions, "super", "let a user do everything, whatever rules say", "sluice user super alice", _give_all
    )
    one.add_argument("name", metavar="NAME", help="the user name, also of a certificate or an access key")
    one.add_argument("--revoke", action="store_true", help="let rules count for the user again")
    management.add_arguments(one)
    example = "sluice user list --data-dir /var/lib/sluice --json"
    management.add_arguments(declare(actions, "list", "list the users", example, _list))


def _add(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.CreateUserRequest(name=arguments.name, keys=_keys(arguments))
    management.ask(arguments, "CreateUser", request, pb.User)
    return _done(arguments, "added")


def _change(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ChangePasswordRequest(name=arguments.name, keys=_keys(arguments))
    management.ask(arguments, "ChangePassword", request, pb.User)
    return _done(arguments, "changed")


def _done(arguments: Arguments, done: str) -> int:
    print_result(arguments, {"user": arguments.name, "done": done}, f"{done} {arguments.name}")
    return 0


def _keys(arguments: Arguments) -> "pb.ScramKeys":
    """The keys of the password, which is asked for. Raises `CommandError`."""
    from gateway.auth.credentials.scram import ITERATIONS, SALT_SIZE, new_user  # noqa: PLC0415
    from gateway.management.areas.access import user_name  # noqa: PLC0415
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415
    from gateway.rpc.status import RequestError  # noqa: PLC0415

    try:
        name = user_name(arguments.name)
    except RequestError as error:
        raise CommandError(str(error)) from error
    user = new_user(name, _password(), secrets.token_bytes(SALT_SIZE), arguments.iterations or ITERATIONS)
    return pb.ScramKeys(
        iterations=user.iterations, salt=user.salt, stored_key=user.stored_key, server_key=user.server_key
    )


def _remove(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.DeleteUserRequest(name=arguments.name)
    count = management.ask(arguments, "DeleteUser", request, pb.DeleteUserReply).sessions
    sessions = "" if not count else " with 1 session" if count == 1 else f" with {count} sessions"
    facts = {"user": arguments.name, "done": "removed", "sessions": count}
    print_result(arguments, facts, f"removed {arguments.name}{sessions}")
    return 0


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        for row in management.pages(link, "ListUsers", pb.ListUsersRequest(), pb.ListUsersReply, 1000, "users"):
            marks = ["super user"] * row.super_user + ["disabled"] * row.disabled
            marks += ["no password"] * (not row.iterations) + [f"role {role}" for role in row.roles]
            facts = {"name": row.name, "iterations": row.iterations, "roles": list(row.roles)}
            facts |= {"disabled": row.disabled, "super": row.super_user}
            print_result(arguments, facts, f"{row.name} ({', '.join(marks)})" if marks else row.name)
    return 0


def _switch(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.UpdateUserRequest(name=arguments.name, disabled=arguments.disables)
    management.ask(arguments, "UpdateUser", request, pb.User)
    return _done(arguments, "disabled" if arguments.disables else "enabled")


def _give_roles(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.UpdateUserRequest(name=arguments.name, roles=pb.RoleNames(names=names_of(arguments.roles)))
    user = management.ask(arguments, "UpdateUser", request, pb.User)
    roles = list(user.roles)
    print_result(arguments, {"user": user.name, "roles": roles}, f"{user.name}: {', '.join(roles) or 'no roles'}")
    return 0


def _give_all(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.UpdateUserRequest(name=arguments.name, super_user=not arguments.revoke)
    management.ask(arguments, "UpdateUser", request, pb.User)
    now = "no super user any more" if arguments.revoke else "a super user"
    print_result(arguments, {"user": arguments.name, "super": not arguments.revoke}, f"{arguments.name} is {now}")
    return 0


def _password() -> bytes:
    """Ask for the password twice at a terminal, or read the first line of standard input. Raises `CommandError`."""
    if sys.stdin.isatty():
        password = getpass.getpass("password: ").encode()
        if getpass.getpass("again: ").encode() != password:
            raise CommandError("the two passwords differ")
    else:
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
    if not password:
        raise CommandError("the password must not be empty")
    return password
