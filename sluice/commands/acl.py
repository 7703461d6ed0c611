"""`sluice acl`: rules about the topics to which users may publish and subscribe."""

import argparse
import sys
from typing import Final

from sluice.console.command import Arguments, CommandError, Subparsers, add_actions, declare, print_result
from sluice.node import management

EXAMPLE: Final = "sluice acl set --user alice 'allow both home/%u/#' 'allow subscribe public/#'"
DENIED: Final = 3  # exit code of check
_EVERYBODY: Final = "everybody"


def add(subparsers: Subparsers) -> None:
    about = "manage the rules that allow or deny users to publish and subscribe"
    actions = add_actions(declare(subparsers, "acl", about, EXAMPLE))
    setting = declare(actions, "set", "replace the rules of a user", EXAMPLE, _set)
    _add_user(setting)
    text = "a rule such as 'allow publish home/%%c/#' or 'allow LIST,GET group:* from 10.0.0.0/8': allow or deny;"
    text += " publish, subscribe, both, or actions; a topic filter, or a kind and a name; sources. %%c stands for the"
    text += " client id and %%u for the user name (default: one rule per line of standard input)"
    setting.add_argument("rules", nargs="*", metavar="RULE", help=text)
    _add_user(declare(actions, "remove", "remove the rules of a user", "sluice acl remove --everybody", _remove))
    management.add_arguments(declare(actions, "list", "list all rules", "sluice acl list", _list))
    example = "sluice acl check --user alice --client-id sensor-7 publish home/alice/temp"
    about = f"check whether the rules allow an action on a topic (exit code {DENIED}: denied)"
    checking = declare(actions, "check", about, example, _check)
    text = "the action to check: publish, subscribe, or one of rules such as LIST"
    checking.add_argument("does", metavar="ACTION", help=text)
    text = (
        "the topic to publish to or the filter to subscribe to; may begin with $share, $replay or $delayed; or another"
    )
    text += " resource as in a rule, such as group:billing"
    checking.add_argument("resource", metavar="RESOURCE", help=text)
    checking.add_argument("--user", default="", metavar="NAME", help="the user name (default: no user)")
    checking.add_argument("--client-id", default="", metavar="CLIENT", help="the client id (default: empty)")
    text = "the address of the client, or local for a Unix socket (default: rules with sources do not apply)"
    checking.add_argument("--source", default="", metavar="ADDRESS", help=text)
    checking.add_argument("--explain", action="store_true", help="print each rule up to the one that decides")
    text = "the listener's answer when no rule matches (default: deny)"
    checking.add_argument("--default", choices=("allow", "deny"), default="deny", help=text)
    management.add_arguments(checking)


def _add_user(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--user", metavar="NAME", help="the user to whom the rules apply")
    text = "rules for every user; they apply after the user's own rules"
    group.add_argument("--everybody", action="store_true", help=text)
    management.add_arguments(parser)


def _set(arguments: Arguments) -> int:
    rules = arguments.rules or _read()
    if not rules:
        raise CommandError("no rule is given; use `acl remove` to remove rules")
    return _replace(arguments, rules)


def _read() -> list[str]:
    """The rules of standard input."""
    try:
        lines = [line.strip() for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise CommandError(f"standard input is not UTF-8: {error}") from None
    return [line for line in lines if line and not line.startswith("#")]


def _remove(arguments: Arguments) -> int:
    return _replace(arguments, [])


def _replace(arguments: Arguments, rules: list[str]) -> int:
    if arguments.user == "":
        raise CommandError("the user name must not be empty")
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.SetRulesRequest(user=arguments.user or "", rules=rules)
    answer = management.ask(arguments, "SetRules", request, pb.SetRulesReply)
    if rules and not answer.is_user:
        _warn(arguments)
    count = "1 rule" if len(rules) == 1 else f"{len(rules) or 'no'} rules"
    facts = {"user": arguments.user, "rules": rules}
    print_result(arguments, facts, f"{count} for {arguments.user or _EVERYBODY}")
    return 0


def _warn(arguments: Arguments) -> None:
    """Warn of a user name without an account. It may be mistyped, or belong to a certificate or an access key."""
    text = f"there is no user {arguments.user!r}: only a certificate or an access key can have this name"
    print(f"{arguments.full_name}: {text}", file=sys.stderr)


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        for row in management.pages(link, "ListRules", pb.ListRulesRequest(), pb.ListRulesReply, 1000, "rules"):
            text = "\n".join([f"{row.user or _EVERYBODY}:", *(f"  {rule}" for rule in row.rules)])
            print_result(arguments, {"user": row.user or None, "rules": list(row.rules)}, text)
    return 0


def _check(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.CheckRulesRequest(
        user=arguments.user,
        client_id=arguments.client_id,
        action=arguments.does,
        resource=arguments.resource,
        source=arguments.source,
        by_default=arguments.default == "allow",
    )
    answer = management.ask(arguments, "CheckRules", request, pb.CheckRulesReply)
    if not answer.is_user:
        _warn(arguments)
    steps = [{"rule": step.rule, "outcome": step.outcome} for step in answer.steps]
    facts = {"allowed": answer.allowed, "because": answer.because, "is_user": answer.is_user, "steps": steps}
    lines = [f"{step['rule']}: {step['outcome']}" for step in steps] if arguments.explain else []
    lines.append(f"{'allowed' if answer.allowed else 'denied'}: {answer.because}")
    print_result(arguments, facts, "\n".join(lines))
    return 0 if answer.allowed else DENIED
