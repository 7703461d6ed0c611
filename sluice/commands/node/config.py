"""`sluice config` and `sluice store`: the configuration, in force and in files, and the state of the log."""

import sys
from pathlib import Path
from typing import Final

from sluice.console.command import Arguments, Subparsers, UsageError, add_actions, add_json, declare, print_result
from sluice.console.facts import facts
from sluice.console.times import format_size
from sluice.node import management

EXAMPLE: Final = "sluice config show --changed --data-dir /var/lib/sluice"
_DEFAULT: Final = "default"


def add(subparsers: Subparsers) -> None:
    about = "explain and check the configuration; show that of a running node, and let it read its file again"
    actions = add_actions(declare(subparsers, "config", about, EXAMPLE))
    about = "show all settings in force, and where each comes from; secrets are masked"
    showing = declare(actions, "show", about, EXAMPLE, _show)
    showing.add_argument("--changed", action="store_true", help="only settings that are not the default")
    management.add_arguments(showing)
    about = "read the configuration file and the certificates again, as SIGHUP does"
    management.add_arguments(declare(actions, "reload", about, "sluice config reload --data-dir data", _reload))
    about = "check a configuration file: exit code 0 if it is valid, 1 if not, 2 if it cannot be read"
    checking = declare(actions, "check", about, "sluice config check /etc/sluice/sluice.toml", _check)
    checking.add_argument("file", type=Path, metavar="FILE", help="the configuration file")
    add_json(checking)
    about = "print all settings with what they do, their range and their default"
    printing = declare(actions, "reference", about, "sluice config reference > sluice.toml", _reference)
    text = "a configuration file with comments (toml, the default), or the page docs/configuration.md (markdown)"
    printing.add_argument("--format", choices=("toml", "markdown"), default="toml", help=text)
    example = "sluice store status --data-dir /var/lib/sluice"
    stores = add_actions(declare(subparsers, "store", "show the state of the log of a running node", example))
    about = "show the range of the log, its segments, retention and damage"
    management.add_arguments(declare(stores, "status", about, example, _status))


def _show(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    reply = management.ask(arguments, "GetConfiguration", pb.GetConfigurationRequest(), pb.Configuration)
    for each in reply.settings:
        if not arguments.changed or each.source != _DEFAULT:
            print_result(arguments, facts(each), f"{each.name} = {each.value}  # {each.source}")
    return 0


def _reload(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    reply = management.ask(
        arguments, "ReloadConfiguration", pb.ReloadConfigurationRequest(), pb.ReloadConfigurationReply
    )
    lines = ["read the configuration and the certificates again"]
    lines += (f"{name} has changed" for name in reply.changed)
    lines += (f"{name} changes with the next restart" for name in reply.needs_restart)
    print_result(arguments, facts(reply), "\n".join(lines))
    return 0


def _check(arguments: Arguments) -> int:
    from gateway.config.config import ConfigError, problems  # noqa: PLC0415

    try:
        found = problems(arguments.file)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    for line, text in found:
        where = f"{arguments.file}:{line}" if line else f"{arguments.file}"
        print_result(arguments, {"file": str(arguments.file), "line": line, "problem": text}, f"{where}: {text}")
    if not found:
        print(f"{arguments.file} is valid", file=sys.stderr)
    return 1 if found else 0


def _reference(arguments: Arguments) -> int:
    from gateway.config import reference  # noqa: PLC0415

    sys.stdout.write(reference.toml() if arguments.format == "toml" else reference.markdown())
    return 0


def _status(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    store = management.ask(arguments, "GetStore", pb.GetStoreRequest(), pb.Store)
    lines = [
        f"the log has positions [{store.begin}, {store.end}) in {len(store.segments)} segments",
        f"log {format_size(store.log_bytes)}, views {format_size(store.view_bytes)}",
        f"{format_size(store.free_bytes)} free on the disk",
        f"{store.sessions} sessions, {store.retained} retained messages, {store.held} held messages",
    ]
    if store.failed:
        lines.insert(0, "the log has failed: it takes no messages until a restart")
    if store.is_disk_low:
        lines.append("the disk has fewer bytes free than retention is to leave (store.retention_free_bytes)")
    lines += (f"damaged: positions [{each.begin}, {each.end}) are skipped" for each in store.damage)
    if store.damage_met:
        lines.append(f"{store.damage_met} damaged places were met: see `sluice log verify`")
    print_result(arguments, facts(store), "\n".join(lines))
    return 1 if store.failed else 0
