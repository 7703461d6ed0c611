"""`sluice acl request`, `requests`, `approve` and `decline`: rules that users ask for."""

from typing import TYPE_CHECKING, Final

from sluice.console.command import Arguments, Subparsers, declare, print_result
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

_ASK: Final = "sluice acl request subscribe 'home/#' --reason 'heating report' --host https://node.example:8080"
_DECIDE: Final = "sluice acl {} 8192 --why 'until the audit is over' --data-dir /var/lib/sluice"


def add(actions: Subparsers) -> None:
    """Add the actions of `sluice acl`."""
    asking = declare(actions, "request", "ask for access, as the user of --username", _ASK, _request)
    text = "what to do: publish, subscribe, both, * or actions of rules such as SUB,GET"
    asking.add_argument("does", metavar="ACTIONS", help=text)
    text = "of what: a topic filter, or a group such as group:billing"
    asking.add_argument("resource", metavar="RESOURCE", help=text)
    asking.add_argument("--reason", default="", metavar="TEXT", help="why, for those who decide")
    text = "list requests for access: your own, and those that you may decide"
    listing = declare(actions, "requests", text, "sluice acl requests --data-dir /var/lib/sluice", _list)
    listing.add_argument("--decided", action="store_true", help="those that were decided, the latest first")
    listing.add_argument("--user", default="", metavar="NAME", help="only those of this user")
    listing.add_argument("--limit", type=int, default=100, metavar="N", help="at most so many (default: %(default)s)")
    about = "approve a request for access: its rule becomes the first one of the user"
    approving = declare(actions, "approve", about, _DECIDE.format("approve"), _approve)
    about = "decline a request for access"
    declining = declare(actions, "decline", about, _DECIDE.format("decline"), _decline)
    for parser in (approving, declining):
        parser.add_argument("number", type=int, metavar="NUMBER", help="of the request, as `acl requests` shows it")
        parser.add_argument("--why", default="", metavar="TEXT", help="why; the user sees it")
    for parser in (asking, listing, approving, declining):
        management.add_arguments(parser)


def _request(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    asked = pb.RequestAccessRequest(actions=arguments.does, resource=arguments.resource, reason=arguments.reason)
    found = management.ask(arguments, "RequestAccess", asked, pb.AccessRequest)
    print_result(arguments, facts(found), f"request {_line(found)}")
    return 0


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListAccessRequestsRequest(decided=arguments.decided, user=arguments.user)
    left = arguments.limit
    with management.connect(arguments) as link:
        rows = management.pages(link, "ListAccessRequests", request, pb.ListAccessRequestsReply, left, "requests")
        for found in rows:
            if not left:
                break
            left -= 1
            print_result(arguments, facts(found), _line(found))
    return 0


def _approve(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ApproveAccessRequestRequest(number=arguments.number, why=arguments.why)
    found = management.ask(arguments, "ApproveAccessRequest", request, pb.AccessRequest)
    print_result(arguments, facts(found), _line(found))
    return 0


def _decline(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.DeclineAccessRequestRequest(number=arguments.number, why=arguments.why)
    found = management.ask(arguments, "DeclineAccessRequest", request, pb.AccessRequest)
    print_result(arguments, facts(found), _line(found))
    return 0


def _line(found: "pb.AccessRequest") -> str:
    reason = f": {printable(found.reason)}" if found.reason else ""
    whose = f"{found.number} of {printable(found.user)}, since {format_time(found.since_ms)}"
    line = f"{whose}: {printable(found.rule)}{reason}"
    if found.state == "open":
        return f"{line} (open until {format_time(found.until_ms)})"
    by = f" by {printable(found.by)}" if found.by else ""
    why = f": {printable(found.why)}" if found.why else ""
    return f"{line} ({found.state} {format_time(found.decided_ms)}{by}{why})"
