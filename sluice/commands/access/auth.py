"""`sluice auth`: how the node finds out who somebody is."""

import getpass
import sys
from datetime import UTC, datetime
from typing import Final

from sluice.console.command import Arguments, CommandError, Subparsers, add_actions, declare, print_result
from sluice.node import management

EXAMPLE: Final = "sluice auth test alice --client-id sensor-7"
DENIED: Final = 3  # exit code of test


def add(subparsers: Subparsers) -> None:
    actions = add_actions(declare(subparsers, "auth", "find out why somebody can or cannot log in", EXAMPLE))
    about = f"log in as a device would, and tell which authenticator decides and why (exit code {DENIED}: denied)"
    testing = declare(actions, "test", about, EXAMPLE, _test)
    text = "the user name; the password comes from a prompt or the first line of standard input"
    testing.add_argument("name", nargs="?", default="", metavar="NAME", help=text)
    text = "what is asked for is a token, which comes without a name as in `Authorization: Bearer`"
    testing.add_argument("--bearer", action="store_true", help=text)
    testing.add_argument("--client-id", default="", metavar="CLIENT", help="the MQTT client id (default: empty)")
    text = "the address that an authenticator is told, or local for a Unix socket (default: that of this command)"
    testing.add_argument("--source", default="", metavar="ADDRESS", help=text)
    management.add_arguments(testing)


def _test(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.TestLoginRequest(
        user=arguments.name,
        password=_secret(arguments),
        bearer=arguments.bearer,
        client_id=arguments.client_id,
        source=arguments.source,
    )
    found = management.ask(arguments, "TestLogin", request, pb.TestLoginReply)
    lines = [f"{step.authenticator} {step.outcome}" for step in found.steps]
    expires = datetime.fromtimestamp(found.expires_ms / 1000, UTC) if found.HasField("expires_ms") else None
    if found.allowed:
        lines += [f"logged in as {found.user}"]
        lines += ["  a super user, above all rules"] if found.super_user else []
        lines += [f"  until {expires:%Y-%m-%d %H:%M:%S} UTC"] if expires is not None else []
        lines += [f"  role {role}" for role in found.roles] + [f"  {rule}" for rule in found.rules]
    else:
        lines += [f"refused: {found.because}"]
    facts = {
        "allowed": found.allowed,
        "because": found.because,
        "steps": [{"authenticator": step.authenticator, "outcome": step.outcome} for step in found.steps],
        "user": found.user,
        "super": found.super_user,
        "roles": list(found.roles),
        "rules": list(found.rules),
        "expires_ms": found.expires_ms if expires is not None else None,
    }
    print_result(arguments, facts, "\n".join(lines))
    return 0 if found.allowed else DENIED


def _secret(arguments: Arguments) -> str:
    """Ask for the password or the token at a terminal, or read the first line of standard input. Raises
    `CommandError`."""
    if sys.stdin.isatty():
        return getpass.getpass("token: " if arguments.bearer else "password: ")
    try:
        return sys.stdin.readline().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CommandError(f"standard input is not UTF-8: {error}") from None
