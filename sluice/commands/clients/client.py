"""`sluice client` and `sluice session`: list, show, disconnect and end the clients and sessions of a running node."""

import sys
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Run, Subparsers, add_actions, add_limit, declare, print_result
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

_NEVER: Final = 0xFFFF_FFFF


def add(subparsers: Subparsers) -> None:
    about = "list, show and disconnect the clients of a running node"
    example = "sluice client list --prefix meter- --data-dir /var/lib/sluice"
    clients = add_actions(declare(subparsers, "client", about, example))
    _add_list(clients, "list the clients that are connected, in the order of their client ids", example, connected=True)
    _add_one(clients, "client", "get", "show a client, its session and its subscriptions", _get)
    _add_one(clients, "client", "kick", "disconnect a client (reason code 0x98 in MQTT 5), keep its session", _kick)
    about = "list, show and end the sessions of a running node"
    example = "sluice session list --user alice --data-dir /var/lib/sluice"
    sessions = add_actions(declare(subparsers, "session", about, example))
    _add_list(sessions, "list all sessions, connected or not, in the order of their client ids", example)
    _add_one(sessions, "session", "get", "show a session and its subscriptions", _get)
    _add_one(sessions, "session", "end", "disconnect a client and delete its session", _end)


def _add_list(actions: Subparsers, about: str, example: str, *, connected: bool = False) -> None:
    listing = declare(actions, "list", about, example, _list)
    listing.set_defaults(connected=connected)
    listing.add_argument("--prefix", default="", metavar="TEXT", help="only client ids that begin with this")
    listing.add_argument("--user", default="", metavar="NAME", help="only sessions of this user")
    listing.add_argument("--after", metavar="CLIENT", help="begin after this client id")
    add_limit(listing, "sessions", 1000)
    management.add_arguments(listing)


def _add_one(actions: Subparsers, command: str, name: str, about: str, work: Run) -> None:
    one = declare(actions, name, about, f"sluice {command} {name} meter-17 --data-dir /var/lib/sluice", work)
    one.add_argument("client", metavar="CLIENT", help="the client id")
    management.add_arguments(one)


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListClientsRequest(connected=arguments.connected, prefix=arguments.prefix, user=arguments.user)
    if arguments.after is not None:
        request.after = arguments.after
    with management.connect(arguments) as link:
        rows = management.pages(link, "ListClients", request, pb.ListClientsReply, arguments.limit, "clients")
        for row in islice(rows, arguments.limit):
            print_result(arguments, _facts(row), _line(row))
        if next(rows, None) is not None:
            text = "there are more sessions: continue with --after, or raise --limit"
            print(f"{arguments.full_name}: {text}", file=sys.stderr)
    return 0


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    row = management.ask(arguments, "GetClient", pb.GetClientRequest(client_id=arguments.client), pb.Client)
    lines = [_line(row)]
    if row.HasField("connected_ms"):
        start = "a clean start" if row.clean_start else "no clean start"
        since = f"connected since {format_time(row.connected_ms)}, {start}, keep alive {row.keep_alive_s} s"
        lines.append(f"  {since}, {row.queued_bytes} bytes wait for its socket")
    if row.unknown:
        lines.append(f"  nothing is known of its connection: {printable(row.unknown)}")
    lines += (f"  {printable(each.filter)} qos {each.qos}, backlog {each.backlog}" for each in row.subscriptions)
    if row.HasField("will"):
        due = f", due {format_time(row.will.due_ms)}" if row.will.HasField("due_ms") else ""
        lines.append(f"  will on {printable(row.will.topic)}{due}")
    dropped = [f"{count} {reason}" for reason, count in facts(row.dropped).items() if count]
    if dropped:
        lines.append(f"  dropped since the node started: {', '.join(dropped)}")
    print_result(arguments, facts(row), "\n".join(lines))
    return 0


def _kick(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    management.ask(arguments, "KickClient", pb.KickClientRequest(client_id=arguments.client), pb.KickClientReply)
    return _done(arguments, "disconnected")


def _end(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    management.ask(arguments, "EndSession", pb.EndSessionRequest(client_id=arguments.client), pb.EndSessionReply)
    return _done(arguments, "ended")


def _done(arguments: Arguments, done: str) -> int:
    print_result(arguments, {"client_id": arguments.client, "done": done}, f"{done} {printable(arguments.client)}")
    return 0


def _facts(row: "pb.Client") -> dict[str, object]:
    """A row of a list, in which the subscriptions are not there."""
    return {name: value for name, value in facts(row).items() if name != "subscriptions"}


def _line(row: "pb.Client") -> str:
    """Format a session as one line."""
    if not row.connected:
        where = f"offline since {format_time(row.closed_at_ms)}" if row.closed_at_ms else "offline"
    elif row.HasField("address"):
        where = f"connected from {printable(row.address)} with MQTT {row.version}"
        where += ", paced by a publish rate" if row.paced else ""
    else:
        where = f"connected to {printable(row.gateway)}"
    expiry = row.expiry_interval_s
    lasts = "never expires" if expiry == _NEVER else f"expires {expiry} s after disconnecting"
    if not expiry:
        lasts = "ends with its connection"
    user = f" of user {printable(row.user)}" if row.user else ""
    counts = f"{row.subscription_count} subscriptions, backlog {row.backlog}, {row.in_flight} in flight"
    dropped = sum(facts(row.dropped).values())
    return f"{printable(row.client_id)}{user}: {where}, {lasts}, {counts}" + (f", {dropped} dropped" if dropped else "")
