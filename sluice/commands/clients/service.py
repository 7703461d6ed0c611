"""`sluice service`: the cloud services that are connected to a running node: who they are, what they call and hold."""

import sys
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, add_actions, add_limit, declare, print_result
from sluice.console.facts import facts
from sluice.console.machines import machine_text
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice service list --group billing --data-dir /var/lib/sluice"


def add(subparsers: Subparsers) -> None:
    about = "list and show the cloud services that are connected to a node: SDK, RocketMQ, other gRPC, HTTP"
    actions = add_actions(declare(subparsers, "service", about, EXAMPLE))
    listing = declare(actions, "list", "list the services, and how fast they send and receive", EXAMPLE, _list)
    listing.add_argument("--group", default="", metavar="GROUP", help="only services that consume for this group")
    listing.add_argument("--user", default="", metavar="NAME", help="only services of this user")
    listing.add_argument("--name", default="", metavar="NAME", help="only services with this name, or member name")
    listing.add_argument("--after", metavar="ID", help="begin after this id")
    add_limit(listing, "services", 1000)
    management.add_arguments(listing)
    about = "show a service: its machine, what it calls, and what it does in its groups"
    one = declare(actions, "get", about, "sluice service get 5d41402abc4b --data-dir /var/lib/sluice", _get)
    one.add_argument("id", metavar="ID", help="the id, as `sluice service list` prints it")
    management.add_arguments(one)


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListServicesRequest(group=arguments.group, user=arguments.user, name=arguments.name)
    if arguments.after is not None:
        request.after = arguments.after
    unknown: dict[str, None] = {}  # sorted as they came
    with management.connect(arguments) as link:
        rows = management.pages(
            link, "ListServices", request, pb.ListServicesReply, arguments.limit, "services", unknown
        )
        for row in islice(rows, arguments.limit):
            print_result(arguments, facts(row), _line(row))
        if next(rows, None) is not None:
            text = "there are more services: continue with --after, or raise --limit"
            print(f"{arguments.full_name}: {text}", file=sys.stderr)
    for each in unknown:
        print(f"{arguments.full_name}: not complete: {printable(each)}", file=sys.stderr)
    return 1 if unknown else 0


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    row = management.ask(arguments, "GetService", pb.GetServiceRequest(id=arguments.id), pb.ServiceClient)
    lines = [_line(row), f"  connected since {format_time(row.since_ms)}, {row.under_way} calls under way"]
    lines.append(f"  {row.sent} messages sent, {row.received} received")
    lines += (f"  {printable(each.method)}: {each.count} calls" for each in row.calls)
    for each in row.groups:
        member = f" as {printable(each.member)}" if each.member else ""
        done = f"{each.received} received, {each.acknowledged} acknowledged, {each.failed} failed"
        lines.append(
            f"  group {printable(each.group)}{member}: holds {each.held}, {done}, {each.handling_ms:.0f} ms each"
        )
    print_result(arguments, facts(row), "\n".join(lines))
    return 0


def _line(row: "pb.ServiceClient") -> str:
    """Format a service as one line."""
    name = f" {printable(row.name)}" if row.name else ""
    last = f", last call {format_time(row.last_ms)}" if row.HasField("last_ms") else ""
    groups = f", groups {', '.join(printable(each.group) for each in row.groups)}" if row.groups else ""
    rates = f"sends {row.sent_rate:.1f}/s, receives {row.received_rate:.1f}/s"
    return f"{row.id}{name}: {machine_text(row.machine)}, {rates}{groups}{last}"
