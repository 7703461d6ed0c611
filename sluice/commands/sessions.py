"""`sluice sessions`: list, show, disconnect and remove the sessions of a running node."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from sluice.console.command import Arguments, Subparsers, add_actions, add_limit, declare, print_result
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import admin

EXAMPLE: Final = "sluice sessions list --data-dir /var/lib/sluice --connected"
_NEVER: Final = 0xFFFF_FFFF
_PAGE: Final = 1000

Row = dict[str, Any]


def add(subparsers: Subparsers) -> None:
    about = "list, show, disconnect and remove the sessions of a running node"
    actions = add_actions(declare(subparsers, "sessions", about, EXAMPLE))
    listing = declare(actions, "list", "list the sessions in the order of their client ids", EXAMPLE, _list)
    listing.add_argument("--connected", action="store_true", help="list only connected sessions")
    listing.add_argument("--after", metavar="CLIENT", help="begin after this client id")
    add_limit(listing, "sessions", 1000)
    admin.add_arguments(listing)
    for name, summary, work in (
        ("show", "show a session and its subscriptions", _show),
        ("kick", "disconnect a client (reason code 0x98 in MQTT 5) and keep its session", _kick),
        ("remove", "disconnect a client and delete its session", _remove),
    ):
        one = declare(actions, name, summary, f"sluice sessions {name} meter-17 --data-dir /var/lib/sluice", work)
        one.add_argument("client", metavar="CLIENT", help="the client id")
        admin.add_arguments(one)


def _list(arguments: Arguments) -> int:
    rows = _rows(arguments)
    for row in islice(rows, arguments.limit):
        print_result(arguments, row, _line(row))
    if next(rows, None) is not None:
        text = "there are more sessions: continue with --after, or raise --limit"
        print(f"{arguments.full_name}: {text}", file=sys.stderr)
    return 0


def _rows(arguments: Arguments) -> Iterator[Row]:
    after: str | None = arguments.after
    while True:
        limit = min(_PAGE, arguments.limit + 1)
        page = _ask(arguments, "list", {"after": after, "limit": limit, "connected": arguments.connected})
        yield from page["sessions"]
        after = page["after"]
        if after is None:
            return


def _show(arguments: Arguments) -> int:
    row = _ask(arguments, "show", {"client_id": arguments.client})
    lines = [_line(row)]
    lines += (f"  {printable(each['filter'])} qos {each['qos']}, backlog {each['backlog']}" for each in row["filters"])
    if row["will"] is not None:
        due = "" if row["will"]["due_ms"] is None else f", due {format_time(row['will']['due_ms'])}"
        lines.append(f"  will on {printable(row['will']['topic'])}{due}")
    dropped = [f"{count} {reason}" for reason, count in row["dropped"].items() if count]
    if dropped:
        lines.append(f"  dropped since the node started: {', '.join(dropped)}")
    print_result(arguments, row, "\n".join(lines))
    return 0


def _kick(arguments: Arguments) -> int:
    return _end(arguments, "kick", "disconnected")


def _remove(arguments: Arguments) -> int:
    return _end(arguments, "remove", "removed")


def _end(arguments: Arguments, question: str, done: str) -> int:
    _ask(arguments, question, {"client_id": arguments.client})
    facts = {"client_id": arguments.client, "done": done}
    print_result(arguments, facts, f"{done} {printable(arguments.client)}")
    return 0


def _line(row: Row) -> str:
    """Format a session as one line."""
    if row["connected"]:
        where = f"connected from {printable(row['address'])} with MQTT {row['version']}"
    else:
        where = f"offline since {format_time(row['closed_at_ms'])}" if row["closed_at_ms"] else "offline"
    expiry = row["expiry_interval"]
    lasts = "never expires" if expiry == _NEVER else f"expires {expiry} s after disconnecting"
    if not expiry:
        lasts = "ends with its connection"
    dropped = sum(row["dropped"].values())
    user = f" of user {printable(row['user'])}" if row["user"] else ""
    counts = f"{row['subscriptions']} subscriptions, backlog {row['backlog']}, {row['in_flight']} in flight"
    return f"{printable(row['client_id'])}{user}: {where}, {lasts}, {counts}" + (
        f", {dropped} dropped" if dropped else ""
    )


def _ask(arguments: Arguments, question: str, body: Row) -> Row:
    return admin.ask_node(arguments.data_dir, f"/sessions/{question}", body)
