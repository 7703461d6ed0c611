"""`sluice acl`: rules about the topics to which users may publish and subscribe."""

import argparse
import sys
from typing import Final

from sluice.console.command import Arguments, CommandError, Subparsers, add_actions, declare, print_result
from sluice.node import admin

EXAMPLE: Final = "sluice acl set --user alice 'allow both home/%u/#' 'allow subscribe public/#'"
DENIED: Final = 3  # exit code of check
_EVERYBODY: Final = "everybody"


def add(subparsers: Subparsers) -> None:
    about = "manage the rules that allow or deny users to publish and subscribe"
    actions = add_actions(declare(subparsers, "acl", about, EXAMPLE))
    setting = declare(actions, "set", "replace the rules of a user", EXAMPLE, _set)
    _add_user(setting)
    text = "a rule such as 'allow publish home/%%c/#': allow or deny; publish, subscribe or both; a topic filter, where"
    text += " %%c stands for the client id and %%u for the user name (default: one rule per line of standard input)"
    setting.add_argument("rules", nargs="*", metavar="RULE", help=text)
    _add_user(declare(actions, "remove", "remove the rules of a user", "sluice acl remove --everybody", _remove))
    admin.add_arguments(declare(actions, "list", "list all rules", "sluice acl list", _list))
    example = "sluice acl check --user alice --client-id sensor-7 publish home/alice/temp"
    about = f"check whether the rules allow an action on a topic (exit code {DENIED}: denied)"
    checking = declare(actions, "check", about, example, _check)
    checking.add_argument("does", choices=("publish", "subscribe"), help="the action to check")
    text = "the topic to publish to or the filter to subscribe to; may begin with $share, $replay or $delayed"
    checking.add_argument("topic", metavar="TOPIC", help=text)
    checking.add_argument("--user", default="", metavar="NAME", help="the user name (default: no user)")
    checking.add_argument("--client-id", default="", metavar="CLIENT", help="the client id (default: empty)")
    text = "the listener's answer when no rule matches (default: deny)"
    checking.add_argument("--default", choices=("allow", "deny"), default="deny", help=text)
    admin.add_arguments(checking)


def _add_user(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--user", metavar="NAME", help="the user to whom the rules apply")
    text = "rules for every user; they apply after the user's own rules"
    group.add_argument("--everybody", action="store_true", help=text)
    admin.add_arguments(parser)


def _set(arguments: Arguments) -> int:
    rules = arguments.rules or [line.strip() for line in sys.stdin if line.strip() and not line.startswith("#")]
    if not rules:
        raise CommandError("no rule is given; use `acl remove` to remove rules")
    return _replace(arguments, rules)


def _remove(arguments: Arguments) -> int:
    return _replace(arguments, [])


def _replace(arguments: Arguments, rules: list[str]) -> int:
    if arguments.user == "":
        raise CommandError("the user name must not be empty")
    answer = admin.ask(arguments.data_dir, "acl-set", {"user": arguments.user or "", "rules": rules})
    if rules and not answer["is_user"]:
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
    for row in admin.pages(arguments.data_dir, "acl-list", "acl"):
        text = "\n".join([f"{row['user'] or _EVERYBODY}:", *(f"  {rule}" for rule in row["rules"])])
        print_result(arguments, {**row, "user": row["user"] or None}, text)
    return 0


def _check(arguments: Arguments) -> int:
    body = {
        "user": arguments.user,
        "client_id": arguments.client_id,
        "action": arguments.does,
        "topic": arguments.topic,
        "default": arguments.default == "allow",
    }
    answer = admin.ask(arguments.data_dir, "acl-check", body)
    if not answer["is_user"]:
        _warn(arguments)
    print_result(arguments, answer, f"{'allowed' if answer['allowed'] else 'denied'}: {answer['because']}")
    return 0 if answer["allowed"] else DENIED
