"""`sluice acl`: rules about what users may do."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sluice.commands.access import access_requests
from sluice.console.command import Arguments, CommandError, Subparsers, UsageError, add_actions, declare, print_result
from sluice.node import management

EXAMPLE: Final = "sluice acl set --user alice 'allow both home/%u/#' 'allow subscribe public/#'"
DENIED: Final = 3  # exit code of check
_EVERYBODY: Final = "everybody"


def add(subparsers: Subparsers) -> None:
    about = "manage the rules about what users may do"
    actions = add_actions(declare(subparsers, "acl", about, EXAMPLE))
    setting = declare(actions, "set", "replace the rules of a user", EXAMPLE, _set)
    _add_user(setting)
    text = "a rule such as 'allow publish home/%%c/#' or 'allow LIST,GET group:* from 10.0.0.0/8': allow or deny;"
    text += " publish, subscribe, both, or actions; a topic filter, or a kind and a name; sources. %%c stands for the"
    text += " client id and %%u for the user name (default: one rule per line of standard input)"
    setting.add_argument("rules", nargs="*", metavar="RULE", help=text)
    _add_user(declare(actions, "remove", "remove the rules of a user", "sluice acl remove --everybody", _remove))
    _add_list(actions)
    _add_files(actions)
    access_requests.add(actions)
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


def _add_list(actions: Subparsers) -> None:
    example = "sluice acl list --kind group --action UPDATE"
    listing = declare(actions, "list", "list the rules of users, roles and everybody", example, _list)
    listing.add_argument("--user", metavar="NAME", help="only those of this user")
    listing.add_argument("--everybody", action="store_true", help="only those for everybody")
    listing.add_argument("--role", metavar="NAME", help="only those of this role")
    listing.add_argument("--kind", choices=("topic", "group", "session", "cluster"), help="only rules about this")
    listing.add_argument("--action", metavar="ACTION", help="only rules about this action, such as PUB or DELETE")
    management.add_arguments(listing)


def _add_files(actions: Subparsers) -> None:
    text = "give a user the rules and roles of another one"
    copying = declare(actions, "copy", text, "sluice acl copy --from alice --to bob", _copy)
    copying.add_argument("--from", required=True, dest="source", metavar="NAME", help="the user who has them")
    copying.add_argument("--to", required=True, dest="target", metavar="NAME", help="the user whose own they replace")
    management.add_arguments(copying)
    text = "write the roles and rules of all users as TOML to standard output"
    management.add_arguments(declare(actions, "export", text, "sluice acl export > access.toml", _export))
    text = "put the roles and rules of a file in force, and print what changes"
    importing = declare(actions, "import", text, "sluice acl import access.toml --dry-run", _import)
    importing.add_argument("file", type=Path, metavar="FILE", help="a file as `acl export` writes it")
    importing.add_argument("--dry-run", action="store_true", help="print what would change, and change nothing")
    text = "also remove roles, and rules and roles of users, that the file does not have"
    importing.add_argument("--prune", action="store_true", help=text)
    management.add_arguments(importing)


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
        _warn(arguments, arguments.user)
    count = "1 rule" if len(rules) == 1 else f"{len(rules) or 'no'} rules"
    facts = {"user": arguments.user, "rules": rules}
    print_result(arguments, facts, f"{count} for {arguments.user or _EVERYBODY}")
    return 0


def _warn(arguments: Arguments, user: str) -> None:
    """Warn of a user name without an account. It may be mistyped, or belong to a certificate or an access key."""
    text = f"there is no user {user!r}: only a certificate or an access key can have this name"
    print(f"{arguments.full_name}: {text}", file=sys.stderr)


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    is_chosen = _chooser(arguments)
    chosen = (arguments.user is not None, arguments.everybody, arguments.role is not None)
    if sum(chosen) > 1:
        raise UsageError("--user, --everybody and --role exclude each other")
    with management.connect(arguments) as link:
        for row in management.pages(link, "ListRules", pb.ListRulesRequest(), pb.ListRulesReply, 1000, "rules"):
            if not any(chosen) or (arguments.everybody and not row.user) or arguments.user == row.user:
                _print_rules(arguments, "user", row.user, list(filter(is_chosen, row.rules)))
        if any(chosen) and arguments.role is None:
            return 0
        for role in management.pages(link, "ListRoles", pb.ListRolesRequest(), pb.ListRolesReply, 1000, "roles"):
            if arguments.role in (None, role.name):
                _print_rules(arguments, "role", role.name, list(filter(is_chosen, role.rules)))
    return 0


def _chooser(arguments: Arguments) -> Callable[[str], bool]:
    """Whether a rule is listed."""
    from gateway.auth.rules.rule_text import ACTIONS, parse_rule  # noqa: PLC0415
    from store.api import Resource  # noqa: PLC0415

    if arguments.action is not None and arguments.action not in ACTIONS:
        raise UsageError(f"--action is one of {', '.join(ACTIONS)}")

    def is_chosen(text: str) -> bool:
        rule = parse_rule(text)
        if arguments.kind is not None and Resource(rule.kind).name.lower() != arguments.kind:
            return False
        return arguments.action is None or bool(rule.actions & ACTIONS[arguments.action])

    return is_chosen


def _print_rules(arguments: Arguments, whose: str, name: str, rules: list[str]) -> None:
    if rules:
        title = name or _EVERYBODY if whose == "user" else f"role {name}"
        print_result(
            arguments, {whose: name or None, "rules": rules}, "\n".join([f"{title}:", *(f"  {r}" for r in rules)])
        )


def _copy(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415
    from sluice.node import access_file  # noqa: PLC0415

    with management.connect(arguments) as link:
        found = access_file.read(link).users.get(arguments.source)
        if found is None:
            raise CommandError(f"{arguments.source!r} has no rules and no roles")
        names = pb.RoleNames(names=found.names)
        link.call("UpdateUser", pb.UpdateUserRequest(name=arguments.target, roles=names), pb.User)
        request = pb.SetRulesRequest(user=arguments.target, rules=found.rules)
        if not link.call("SetRules", request, pb.SetRulesReply).is_user:
            _warn(arguments, arguments.target)
    facts = {"user": arguments.target, "roles": found.names, "rules": found.rules}
    print_result(arguments, facts, f"{arguments.target} has the rules and roles of {arguments.source}")
    return 0


def _export(arguments: Arguments) -> int:
    from sluice.node import access_file  # noqa: PLC0415

    with management.connect(arguments) as link:
        sys.stdout.write(access_file.text_of(access_file.read(link)))
    return 0


def _import(arguments: Arguments) -> int:
    from sluice.node import access_file  # noqa: PLC0415

    try:
        wanted = access_file.parse(arguments.file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {arguments.file}: {error}") from error
    with management.connect(arguments) as link:
        changes = access_file.changes(access_file.read(link), wanted, arguments.prune)
        for change in changes:
            title = {"users": f"user {change.name}", "roles": f"role {change.name}"}.get(change.kind, _EVERYBODY)
            done = "removed" if change.is_removed else "new" if change.is_new else "changed"
            facts = {"kind": change.kind, "name": change.name or None, "done": done, "difference": change.difference}
            text = "\n".join([f"{title} ({done}):", *(f"  {line}" for line in change.difference)])
            print_result(arguments, facts, text)
        if not arguments.dry_run:
            access_file.apply(link, changes)
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
        _warn(arguments, arguments.user)
    steps = [{"rule": step.rule, "outcome": step.outcome} for step in answer.steps]
    facts = {"allowed": answer.allowed, "because": answer.because, "is_user": answer.is_user, "steps": steps}
    lines = [f"{step['rule']}: {step['outcome']}" for step in steps] if arguments.explain else []
    lines.append(f"{'allowed' if answer.allowed else 'denied'}: {answer.because}")
    print_result(arguments, facts, "\n".join(lines))
    return 0 if answer.allowed else DENIED
