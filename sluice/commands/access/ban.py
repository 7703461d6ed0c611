"""`sluice ban`: client ids, users and networks that are not let in."""

import argparse
import re
import time
from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, add_actions, declare, print_result
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time, milliseconds, parse_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice ban add client:meter-17 --for 2h --reason 'sends nonsense' --data-dir /var/lib/sluice"
_SPAN: Final = re.compile(r"(\d{1,9})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add(subparsers: Subparsers) -> None:
    about = "ban client ids, users and networks, until a time or until the ban is ended"
    actions = add_actions(declare(subparsers, "ban", about, EXAMPLE))
    text = "list the bans that are in force"
    listing = declare(actions, "list", text, "sluice ban list --data-dir /var/lib/sluice", _list)
    adding = declare(actions, "add", "ban somebody at once, or change a ban", EXAMPLE, _add)
    end = adding.add_mutually_exclusive_group()
    end.add_argument("--for", dest="span", type=_span, metavar="TIME", help="how long, such as 90s, 30m, 2h or 7d")
    end.add_argument("--until", type=parse_time, metavar="TIME", help="when it ends (ISO 8601)")
    adding.add_argument("--reason", default="", metavar="TEXT", help="why; clients do not see it")
    ending = declare(actions, "end", "end a ban", "sluice ban end client:meter-17 --data-dir /var/lib/sluice", _end)
    for parser in (adding, ending):
        text = "client:ID, user:NAME or address:NETWORK, such as address:192.0.2.0/24"
        parser.add_argument("target", metavar="WHOM", help=text)
    for parser in (listing, adding, ending):
        management.add_arguments(parser)


def _span(text: str) -> int:
    """Parse a time span: its seconds."""
    found = _SPAN.fullmatch(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m, 2h or 7d")
    return int(found[1]) * _SECONDS[found[2]]


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    with management.connect(arguments) as link:
        for ban in management.pages(link, "ListBans", pb.ListBansRequest(), pb.ListBansReply, 1000, "bans"):
            print_result(arguments, facts(ban), _line(ban))
    return 0


def _add(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    until_ms = 0
    if arguments.span is not None:
        until_ms = int((time.time() + arguments.span) * 1000)
    elif arguments.until is not None:
        until_ms = milliseconds(arguments.until)
    request = pb.SetBanRequest(target=arguments.target, until_ms=until_ms, reason=arguments.reason)
    ban = management.ask(arguments, "SetBan", request, pb.Ban)
    print_result(arguments, facts(ban), f"banned {_line(ban)}")
    return 0


def _end(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    management.ask(arguments, "EndBan", pb.EndBanRequest(target=arguments.target), pb.EndBanReply)
    text = f"ended the ban of {printable(arguments.target)}"
    print_result(arguments, {"target": arguments.target, "done": "ended"}, text)
    return 0


def _line(ban: "pb.Ban") -> str:
    until = f"until {format_time(ban.until_ms)}" if ban.until_ms else "without end"
    by = f" by {printable(ban.by)}" if ban.by else ""
    reason = f": {printable(ban.reason)}" if ban.reason else ""
    return f"{printable(ban.target)} {until}, since {format_time(ban.since_ms)}{by}{reason}"
