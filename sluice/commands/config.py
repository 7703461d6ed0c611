"""`sluice config` and `sluice store`: the configuration in force, and the state of the log."""

from typing import Final

from sluice.console.command import Arguments, Subparsers, add_actions, declare, print_result
from sluice.console.facts import facts
from sluice.console.times import format_size
from sluice.node import management

EXAMPLE: Final = "sluice config show --changed --data-dir /var/lib/sluice"
_DEFAULT: Final = "default"


def add(subparsers: Subparsers) -> None:
    about = "show the configuration of a running node, and reload its certificates"
    actions = add_actions(declare(subparsers, "config", about, EXAMPLE))
    about = "show all settings in force, and where each comes from; secrets are masked"
    showing = declare(actions, "show", about, EXAMPLE, _show)
    showing.add_argument("--changed", action="store_true", help="only settings that are not the default")
    management.add_arguments(showing)
    about = "read the certificates again, as SIGHUP does"
    management.add_arguments(declare(actions, "reload", about, "sluice config reload --data-dir data", _reload))
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

    management.ask(arguments, "ReloadConfiguration", pb.ReloadConfigurationRequest(), pb.ReloadConfigurationReply)
    print_result(arguments, {"done": "reloaded"}, "reloaded the certificates")
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
