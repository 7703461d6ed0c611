"""`sluice timer` and `sluice txn`: delayed messages, and the messages of open transactions."""

import argparse
import sys
from itertools import islice
from typing import TYPE_CHECKING

from sluice.commands.messages.message import message_id
from sluice.console.command import Arguments, Subparsers, add_actions, add_limit, declare, print_result
from sluice.console.facts import facts
from sluice.console.records import printable
from sluice.console.times import format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb


def add(subparsers: Subparsers) -> None:
    example = "sluice timer list --data-dir /var/lib/sluice"
    timers = add_actions(declare(subparsers, "timer", "list and recall delayed messages", example))
    _add_list(timers, "list delayed messages, the next one first", example, "ListTimers")
    about = "drop delayed messages, so that they are never delivered"
    recalling = declare(timers, "recall", about, "sluice timer recall 8192 --data-dir /var/lib/sluice", _recall)
    _add_ids(recalling)
    example = "sluice txn list --data-dir /var/lib/sluice"
    transactions = add_actions(declare(subparsers, "txn", "list and end open transactions", example))
    _add_list(transactions, "list the messages of open transactions", example, "ListTransactions")
    about = "deliver the messages of open transactions"
    committing = declare(transactions, "commit", about, "sluice txn commit 8192 --data-dir /var/lib/sluice", _end)
    committing.set_defaults(commit=True)
    about = "drop the messages of open transactions, so that they are never delivered"
    dropping = declare(transactions, "rollback", about, "sluice txn rollback 8192 --data-dir /var/lib/sluice", _end)
    dropping.set_defaults(commit=False)
    for parser in (committing, dropping):
        _add_ids(parser)


def _add_list(actions: Subparsers, about: str, example: str, method: str) -> None:
    listing = declare(actions, "list", about, example, _list)
    listing.set_defaults(method=method)
    add_limit(listing, "messages", 1000)
    management.add_arguments(listing)


def _add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", type=message_id, metavar="ID", help="the ids of messages, from the list")
    management.add_arguments(parser)


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    kind = pb.ListTimersRequest if arguments.method == "ListTimers" else pb.ListTransactionsRequest
    with management.connect(arguments) as link:
        rows = management.pages(link, arguments.method, kind(), pb.ListHeldReply, arguments.limit, "messages")
        for row in islice(rows, arguments.limit):
            print_result(arguments, facts(row), _line(row))
        if next(rows, None) is not None:
            print(f"{arguments.full_name}: there are more messages: raise --limit", file=sys.stderr)
    return 0


def _line(row: "pb.HeldMessage") -> str:
    due = f" due {format_time(row.due_ms)}" if row.HasField("due_ms") else ""
    checks = f", checked {row.checks} times" if row.checks else ""
    return f"{row.position:>12} {printable(row.topic)}{due} from {printable(row.publisher) or '-'}{checks}"


def _recall(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.RecallTimersRequest(positions=arguments.ids)
    reply = management.ask(arguments, "RecallTimers", request, pb.RecallTimersReply)
    return _report(arguments, "recalled", list(reply.missing))


def _end(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.EndTransactionsRequest(positions=arguments.ids, commit=arguments.commit)
    reply = management.ask(arguments, "EndTransactions", request, pb.EndTransactionsReply)
    return _report(arguments, "committed" if arguments.commit else "rolled back", list(reply.missing))


def _report(arguments: Arguments, done: str, missing: list[int]) -> int:
    count = len(set(arguments.ids) - set(missing))
    text = f"{done} {count} messages" + (f"; not held: {', '.join(map(str, missing))}" if missing else "")
    print_result(arguments, {done.replace(" ", "_"): count, "missing": missing}, text)
    return 1 if missing else 0
