"""`sluice audit`: who logged in, what was denied, and what was administered."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, add_actions, add_limit, declare, print_result
from sluice.console.records import printable
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice audit list --denied --user alice"
_PAUSE_S: Final = 1.0  # between two looks of tail
_LATE_MS: Final = 5000  # another process may write an event so much later
_PAGE: Final = 1000


def add(subparsers: Subparsers) -> None:
    about = "show who logged in, what was denied, and what was administered"
    actions = add_actions(declare(subparsers, "audit", about, EXAMPLE))
    listing = declare(actions, "list", "list the newest events, the oldest of them first", EXAMPLE, _list)
    add_limit(listing, "events", 100)
    tail = declare(actions, "tail", "print events as they come", "sluice audit tail --denied", _tail)
    for each in (listing, tail):
        _add_filters(each)
        management.add_arguments(each)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", default="", metavar="NAME", help="only events of this user")
    parser.add_argument("--source", default="", metavar="ADDRESS", help="only events from this address")
    kinds = ("authentication", "authorization", "administration")
    parser.add_argument("--event", choices=kinds, default="", help="only events of this kind")
    parser.add_argument("--denied", action="store_true", help="only what was refused")


def _list(arguments: Arguments) -> int:
    with management.connect(arguments) as link:
        for event in _events(arguments, link, 0, min(arguments.limit, _PAGE)):
            _print(arguments, event)
    return 0


def _tail(arguments: Arguments) -> int:
    since_ms = int(time.time() * 1000)
    seen: Counter[bytes] = Counter()
    with management.connect(arguments) as link:
        while True:
            events = _events(arguments, link, since_ms, _PAGE)
            told, seen = seen, Counter()
            for event in events:
                packed = event.SerializeToString(deterministic=True)
                seen[packed] += 1
                if seen[packed] > told[packed]:
                    _print(arguments, event)
            since_ms = max([since_ms, *[event.time_ms - _LATE_MS for event in events[-1:]]])
            time.sleep(_PAUSE_S)


def _events(
    arguments: Arguments, link: management.ManagementLink, since_ms: int, limit: int
) -> "Sequence[pb.AuditEvent]":
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListAuditRequest(limit=limit, since_ms=since_ms, user=arguments.user, source=arguments.source)
    request.event, request.denied = arguments.event, arguments.denied
    return link.call("ListAudit", request, pb.ListAuditReply).events


def _print(arguments: Arguments, event: "pb.AuditEvent") -> None:
    facts = {field.name: value for field, value in event.ListFields()}
    print_result(arguments, facts | {"allowed": event.allowed}, _shown(event))


def _shown(event: "pb.AuditEvent") -> str:
    at = datetime.fromtimestamp(event.time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    who = printable(event.user) or "-"
    who += f" ({printable(event.client)})" if event.client else ""
    what = " ".join(filter(None, (event.action, printable(event.resource))))
    why = f": {printable(event.why)}" if event.why else ""
    times = f" ({event.count} times)" if event.count else ""
    verdict = "allowed" if event.allowed else "denied"
    return f"{at} {event.event} {verdict} {who} from {printable(event.source) or '-'}: {what}{why}{times}"
