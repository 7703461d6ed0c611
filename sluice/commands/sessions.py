"""`sluice sessions`: list, show, disconnect and remove the sessions of a running node."""

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from sluice.console.command import Arguments, Subparsers, declare, positive
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import admin

EXAMPLE: Final = "sluice sessions list --data-dir /var/lib/sluice --connected"
_NEVER: Final = 0xFFFF_FFFF
_PAGE: Final = 1000

Row = dict[str, Any]


def add(subparsers: Subparsers) -> None:
    about = "list, show, disconnect and remove the sessions of a running node"
    parser = declare(subparsers, "sessions", about, EXAMPLE, admin.run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = declare(actions, "list", "list the sessions in the order of their client ids", EXAMPLE, admin.run)
    listing.set_defaults(action=_list, name_of_command="sluice sessions list")
    listing.add_argument("--connected", action="store_true", help="list only connected sessions")
    listing.add_argument("--after", metavar="CLIENT", help="begin after this client id")
    listing.add_argument(
        "--limit", type=positive, default=1000, metavar="N", help="list at most N sessions (default: 1000)"
    )
    admin.add_arguments(listing)
    for name, summary, action in (
        ("show", "show a session and its subscriptions", _show),
        ("kick", "disconnect a client (reason code 0x98 in MQTT 5) and keep its session", _kick),
        ("remove", "disconnect a client and delete its session", _remove),
    ):
        one = declare(actions, name, summary, f"sluice sessions {name} meter-17 --data-dir /var/lib/sluice", admin.run)
        one.set_defaults(action=action, name_of_command=f"sluice sessions {name}")
        one.add_argument("client", metavar="CLIENT", help="the client id")
        admin.add_arguments(one)


def _list(arguments: Arguments) -> int:
    left = arguments.limit
    for row in _rows(arguments):
        if not left:
            print(
                "sluice sessions list: there are more sessions: continue with --after, or raise --limit",
                file=sys.stderr,
            )
            break
        left -= 1
        print(json.dumps(row) if arguments.json else _line(row))
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
    if arguments.json:
        print(json.dumps(row))
        return 0
    print(_line(row))
    for each in row["filters"]:
        print(f"  {printable(each['filter'])} qos {each['qos']}, backlog {each['backlog']}")
    if row["will"] is not None:
        due = row["will"]["due_ms"]
        print(f"  will on {printable(row['will']['topic'])}" + (f", due {format_time(due)}" if due is not None else ""))
    dropped = [f"{count} {reason}" for reason, count in row["dropped"].items() if count]
    if dropped:
        print(f"  dropped since the node started: {', '.join(dropped)}")
    return 0


def _kick(arguments: Arguments) -> int:
    return _end(arguments, "kick", "disconnected")


def _remove(arguments: Arguments) -> int:
    return _end(arguments, "remove", "removed")


def _end(arguments: Arguments, question: str, done: str) -> int:
    _ask(arguments, question, {"client_id": arguments.client})
    fact = {"client_id": arguments.client, "done": done}
    print(json.dumps(fact) if arguments.json else f"{done} {printable(arguments.client)}")
    return 0


def _line(row: Row) -> str:
    """Format a session as one line."""
    if row["connected"]:
        where = f"connected from {printable(row['address'])} with MQTT {row['version']}"
    else:
        where = f"offline since {format_time(row['closed_at_ms'])}" if row["closed_at_ms"] else "offline"
    expiry = row["expiry_interval"]
    lasts = (
        "ends with its connection"
        if not expiry
        else "never expires"
        if expiry == _NEVER
        else f"expires {expiry} s after disconnecting"
    )
    dropped = sum(row["dropped"].values())
    user = f" of user {printable(row['user'])}" if row["user"] else ""
    counts = f"{row['subscriptions']} subscriptions, backlog {row['backlog']}, {row['in_flight']} in flight"
    return f"{printable(row['client_id'])}{user}: {where}, {lasts}, {counts}" + (
        f", {dropped} dropped" if dropped else ""
    )


def _ask(arguments: Arguments, question: str, body: Row) -> Row:
    """Return the answer of the node. Raises what `admin.run` prints."""
    return admin.ask_node(arguments.data_dir, f"/sessions/{question}", body)
