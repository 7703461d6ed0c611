"""`sluice group` and `sluice dlq`: consumer groups, and the dead letters that they gave up."""

import sys
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluice.console.command import (
    Arguments,
    Subparsers,
    UsageError,
    add_actions,
    add_limit,
    declare,
    offset,
    print_result,
)
from sluice.console.facts import facts
from sluice.console.machines import machine_text
from sluice.console.messages import message_facts, message_line
from sluice.console.records import printable
from sluice.console.times import format_time, milliseconds, parse_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice group get billing --data-dir /var/lib/sluice"
DLQ_EXAMPLE: Final = "sluice dlq list billing --data-dir /var/lib/sluice"
_PAGE: Final = 1000


def add(subparsers: Subparsers) -> None:
    about = "list consumer groups, show how far they are, move, pause and delete them"
    actions = add_actions(declare(subparsers, "group", about, EXAMPLE))
    example = "sluice group list --slowest --limit 10 --data-dir /var/lib/sluice"
    listing = declare(actions, "list", "list the groups with their lag, and how fast they are", example, _list)
    listing.add_argument("--prefix", default="", metavar="TEXT", help="only groups whose name begins with this")
    order = listing.add_mutually_exclusive_group()
    order.add_argument("--after", metavar="GROUP", help="begin after this group")
    text = "the slowest first, by the time from a lease to its acknowledgement; of those that are active"
    order.add_argument("--slowest", action="store_true", help=text)
    text = "those with the largest lag first; of the first 1000"
    order.add_argument("--furthest-behind", action="store_true", help=text)
    add_limit(listing, "groups", 1000)
    management.add_arguments(listing)
    about = "show the place of a group in each of its queues, its members, and how fast they are"
    one = declare(actions, "get", about, EXAMPLE, _get)
    one.add_argument("group", metavar="GROUP", help="the name of the group")
    management.add_arguments(one)
    example = "sluice group reset billing --to 2025-06-01T12:00:00Z --data-dir /var/lib/sluice"
    moving = declare(actions, "reset", "move a group to another place; its leases there end", example, _reset)
    moving.add_argument("group", metavar="GROUP", help="the name of the group")
    text = "earliest, latest, a time (ISO 8601), or with --queue an offset"
    moving.add_argument("--to", required=True, type=_place, metavar="WHERE", help=text)
    text = "move it in this queue only, which is named as in `sluice group get`: home[0]"
    moving.add_argument("--queue", default="", metavar="QUEUE", help=text)
    text = "begin a group that is not there yet, in the partitions of this parent topic"
    moving.add_argument("--parent", default="", metavar="TOPIC", help=text)
    management.add_arguments(moving)
    for name, about, work in (
        ("pause", "give the members of a group no messages until it is resumed", _pause),
        ("resume", "give the members of a paused group messages again", _resume),
    ):
        changing = declare(actions, name, about, f"sluice group {name} billing --data-dir /var/lib/sluice", work)
        changing.add_argument("group", metavar="GROUP", help="the name of the group")
        management.add_arguments(changing)
    example = "sluice group delete billing --data-dir /var/lib/sluice"
    deleting = declare(actions, "delete", "delete a group; its dead letters stay", example, _delete)
    deleting.add_argument("group", metavar="GROUP", help="the name of the group")
    management.add_arguments(deleting)
    add_dlq(subparsers)


def add_dlq(subparsers: Subparsers) -> None:
    """Add `sluice dlq`."""
    about = "list the dead letters of a group and why they are, publish them again, delete them"
    actions = add_actions(declare(subparsers, "dlq", about, DLQ_EXAMPLE))
    listing = declare(actions, "list", "list the dead letters of a group, the oldest first", DLQ_EXAMPLE, _letters)
    listing.add_argument("group", metavar="GROUP", help="the name of the group")
    listing.add_argument("--after", type=offset, metavar="OFFSET", help="begin after this offset")
    add_limit(listing, "dead letters", 1000)
    management.add_arguments(listing)
    about = "publish dead letters again and finish them; everybody who reads their topic gets them"
    example = "sluice dlq requeue billing 17 18 --data-dir /var/lib/sluice"
    again = declare(actions, "requeue", about, example, _requeue)
    text = "publish them to this topic (default: each to the topic that it came from)"
    again.add_argument("--topic", default="", metavar="TOPIC", help=text)
    example = "sluice dlq delete billing --all --data-dir /var/lib/sluice"
    deleting = declare(actions, "delete", "finish dead letters, so that nobody gets them", example, _drop)
    for parser in (again, deleting):
        parser.add_argument("group", metavar="GROUP", help="the name of the group")
        parser.add_argument("offsets", nargs="*", type=offset, metavar="OFFSET", help="the offsets of dead letters")
        parser.add_argument("--all", action="store_true", help="all dead letters of the group")
        management.add_arguments(parser)


def _place(text: str) -> str | int | datetime:
    """Parse where a group goes on: at an end, at an offset, or at a time."""
    if text in ("earliest", "latest"):
        return text
    return offset(text) if text.isascii() and text.isdigit() else parse_time(text)


def _list(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListGroupsRequest(prefix=arguments.prefix, after=arguments.after)
    if arguments.slowest or arguments.furthest_behind:
        request.order = pb.BY_HANDLING_TIME if arguments.slowest else pb.BY_LAG
    with management.connect(arguments) as link:
        rows = management.pages(link, "ListGroups", request, pb.ListGroupsReply, arguments.limit, "groups")
        for row in islice(rows, arguments.limit):
            print_result(arguments, facts(row), _summary(row))
        if next(rows, None) is not None:
            text = "there are more groups: continue with --after, or raise --limit"
            print(f"{arguments.full_name}: {text}", file=sys.stderr)
    return 0


def _summary(row: "pb.GroupSummary") -> str:
    """A group as one line."""
    behind = f" ({row.lag_seconds:.0f} s)" if row.lag else ""
    slow = f", {row.handling_ms:.0f} ms each" if row.handling_ms else ""
    letters = f", {row.dead_letters} dead letters" if row.dead_letters else ""
    paused = ", paused" if row.paused else ""
    work = f"{row.unfinished} leased or to be retried, {row.acknowledged_rate:.1f}/s acknowledged{slow}"
    return f"{printable(row.group)}: lag {row.lag}{behind}, {work}{letters}{paused}"


def _get(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    return _show(arguments, management.ask(arguments, "GetGroup", pb.GetGroupRequest(group=arguments.group), pb.Group))


def _pause(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.PauseGroupRequest(group=arguments.group)
    return _show(arguments, management.ask(arguments, "PauseGroup", request, pb.Group))


def _resume(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ResumeGroupRequest(group=arguments.group)
    return _show(arguments, management.ask(arguments, "ResumeGroup", request, pb.Group))


def _show(arguments: Arguments, group: "pb.Group") -> int:
    creator = f" of user {printable(group.creator)}" if group.creator else ""
    lines = [f"{printable(group.group)}{creator}: {group.queue_count} queues, {group.dead_letters} dead letters"]
    if group.HasField("pause"):
        by = f" by {printable(group.pause.by)}" if group.pause.by else ""
        lines.append(f"  paused since {format_time(group.pause.since_ms)}{by}")
    for each in group.queues:
        where = f"finished up to offset {each.floor}, {each.unfinished} leased or to be retried"
        behind = f" ({each.lag_seconds:.0f} s)" if each.lag else ""
        lines.append(f"  {printable(each.queue)}: {where}, lag {each.lag}{behind}")
    lines += _work(group)
    print_result(arguments, facts(group), "\n".join(lines))
    return 0


def _work(group: "pb.Group") -> list[str]:
    """How fast a group is, and what its members do."""
    figures = group.figures
    rates = f"{figures.delivered_rate:.1f}/s delivered, {figures.acknowledged_rate:.1f}/s acknowledged"
    lines = [f"  {rates}, {figures.handling_ms:.0f} ms each lately"]
    since = f"{figures.deliveries} deliveries, {figures.redeliveries} of them again"
    ended = f"{figures.acknowledged} acknowledged, {figures.dead_lettered} dead letters"
    lines.append(f"  since the node started: {since}, {ended}")
    if group.attempts:
        counts = ", ".join(f"{each.messages} after {each.deliveries}" for each in group.attempts)
        lines.append(f"  not finished, by deliveries: {counts}")
    for each in group.members:
        name = printable(each.member) or each.service
        done = f"{each.received} received, {each.acknowledged} acknowledged, {each.failed} failed"
        lines.append(f"  member {name}: {machine_text(each.machine)}, holds {each.held}, {done}")
        lines[-1] += f", {each.handling_ms:.0f} ms each" if each.handling_ms else ""
    return lines + [f"  members may be missing: {printable(each)}" for each in group.unknown]


def _reset(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ResetGroupRequest(group=arguments.group, queue=arguments.queue, parent=arguments.parent)
    if isinstance(arguments.to, str):
        setattr(request, arguments.to, True)
    elif isinstance(arguments.to, datetime):
        request.time_ms = milliseconds(arguments.to)
    elif arguments.queue:
        request.offset = arguments.to
    else:
        raise UsageError("an offset needs --queue")
    return _show(arguments, management.ask(arguments, "ResetGroup", request, pb.Group))


def _delete(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    management.ask(arguments, "DeleteGroup", pb.DeleteGroupRequest(group=arguments.group), pb.DeleteGroupReply)
    done = {"group": arguments.group, "done": "deleted"}
    print_result(arguments, done, f"deleted {printable(arguments.group)}")
    return 0


def _letters(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ListDeadLettersRequest(group=arguments.group, after=arguments.after)
    with management.connect(arguments) as link:
        rows = management.pages(
            link, "ListDeadLetters", request, pb.ListDeadLettersReply, arguments.limit, "dead_letters"
        )
        for letter in islice(rows, arguments.limit):
            row = facts(letter)
            what = "a message of a topic that you may not read"
            if letter.HasField("message"):
                what, row["message"] = message_line(letter.message), message_facts(letter.message)
            why = f"{letter.reason.lower().replace('_', ' ')} at delivery {letter.deliveries}"
            times = f"first at {format_time(letter.first_ms)}, last at {format_time(letter.last_ms)}"
            where = f"offset {letter.queue_offset} of {printable(letter.queue)}"
            error = f": {printable(letter.error)}" if letter.error else ""
            print_result(arguments, row, f"{letter.offset:>8} {what}\n  {why}, {times}, {where}{error}")
        if next(rows, None) is not None:
            text = "there are more dead letters: continue with --after, or raise --limit"
            print(f"{arguments.full_name}: {text}", file=sys.stderr)
    return 0


def _requeue(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    _check(arguments)
    count, leased, missing = 0, 0, list[int]()
    with management.connect(arguments) as link:
        for offsets in _portions(arguments):
            request = pb.RequeueDeadLettersRequest(group=arguments.group, offsets=offsets, all=arguments.all)
            request.topic = arguments.topic
            reply = link.call("RequeueDeadLetters", request, pb.RequeueDeadLettersReply)
            count += reply.requeued
            leased += reply.leased
            missing += reply.missing
    return _report(arguments, "requeued", count, missing, leased)


def _drop(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    _check(arguments)
    count, leased, missing = 0, 0, list[int]()
    with management.connect(arguments) as link:
        for offsets in _portions(arguments):
            request = pb.DeleteDeadLettersRequest(group=arguments.group, offsets=offsets, all=arguments.all)
            reply = link.call("DeleteDeadLetters", request, pb.DeleteDeadLettersReply)
            count += reply.deleted
            leased += reply.leased
            missing += reply.missing
    return _report(arguments, "deleted", count, missing, leased)


def _check(arguments: Arguments) -> None:
    if bool(arguments.offsets) == arguments.all:
        raise UsageError("give the offsets of dead letters, or --all")


def _portions(arguments: Arguments) -> list[list[int]]:
    """The offsets, as many at a time as a call takes; one empty portion for all."""
    offsets = arguments.offsets
    return [offsets[at : at + _PAGE] for at in range(0, len(offsets), _PAGE)] or [[]]


def _report(arguments: Arguments, done: str, count: int, missing: list[int], leased: int) -> int:
    text = f"{done} {count} dead letters"
    if missing:
        text += f"; finished already, or leased by a consumer: {', '.join(map(str, missing))}"
    if leased:
        text += f"; {leased} are left: a consumer has leased them, or a call that was interrupted in the last minute"
    print_result(arguments, {"group": arguments.group, done: count, "missing": missing, "leased": leased}, text)
    return 1 if missing or leased else 0
