"""`sluice show`: read what a data folder or a backup holds, now or at an earlier moment. Changes nothing."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.console.command import Arguments, Subparsers, declare, print_result, topic_filter
from sluice.console.records import describe, human, printable, to_json
from sluice.console.times import format_time, position_or_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from store.api import GroupQueueState, HeldPage
    from store.exports.snapshot import Snapshot

EXAMPLE: Final = "sluice show --data-dir /var/lib/sluice --at 2025-06-01T11:59:00Z session meter-17"
PAGE: Final = 1000
PAGE_BYTES: Final = 1 << 20
NEVER: Final = 0xFFFF_FFFF
NOT_FOUND: Final = 1
QUEUES: Final = {b"t": "topic", b"f": "filter", b"p": "partition", b"d": "dead letters of"}

Row = dict[str, Any]


def add(subparsers: Subparsers) -> None:
    summary = "show what a data folder or a backup holds, now or at an earlier moment"
    parser = declare(subparsers, "show", summary, EXAMPLE)
    parser.set_defaults(data_dir=Path("data"), at=None, base=[], more_bases=[], temp=None, json=False)
    _add_options(parser, "base")
    name_of_group = "the name of the group"
    parts = parser.add_subparsers(title="what to show", metavar="WHAT", required=True)
    for name, about, argument, meaning, example, show in (
        ("session", "a session and its subscriptions", "CLIENT", "the client id", "meter-17", _session),
        ("sessions", "the open sessions", None, "", "", _sessions),
        ("retained", "retained messages", "FILTER", "a topic filter", "'home/#'", _retained),
        ("topics", "the topics that have messages", "PREFIX", "the beginning of the topics", "home/", _topics),
        ("partitions", "the partitions of a parent topic", "PARENT", "the parent topic", "home", _partitions),
        ("groups", "consumer groups and their place in each queue", None, "", "", _groups),
        (
            "dead-letters",
            "the dead letters of a group, and why they are",
            "GROUP",
            name_of_group,
            "billing",
            _dead_letters,
        ),
        ("offsets", "the committed offsets of a group", "GROUP", name_of_group, "billing", _offsets),
        ("delayed", "delayed messages that are not due yet", None, "", "", _delayed),
        ("transactions", "messages of open transactions", None, "", "", _transactions),
        ("digest", "a digest of all of this, to compare copies of a log", None, "", "", _digest),
    ):
        part = declare(parts, name, about, f"sluice show --data-dir data {name} {example}".rstrip(), run)
        part.set_defaults(show=show)
        _add_options(part, "more_bases")
        if argument is not None:
            nargs = "?" if name == "topics" else None
            kind = topic_filter if name == "retained" else str
            part.add_argument("name", nargs=nargs, default="", type=kind, metavar=argument, help=meaning)


def _add_options(parser: argparse.ArgumentParser, bases: str) -> None:
    """Add the options that may stand before or after WHAT. The defaults are set on the parser of the command."""
    group = parser.add_argument_group("what to read", argument_default=argparse.SUPPRESS)
    text = "a data folder, whether its node runs or not, or a backup (default: data)"
    group.add_argument("--data-dir", type=Path, metavar="DIR", help=text)
    text = "the moment to show: a time (ISO 8601, UTC without an offset) or a position of the log (default: now)"
    group.add_argument("--at", type=position_or_time, metavar="WHEN", help=text)
    text = "an older backup of the same node. Its views are the starting point when WHEN is before the views of DIR"
    text += "; may be repeated"
    group.add_argument("--base", type=Path, action="append", dest=bases, metavar="BACKUP", help=text)
    text = "where to build the views; fastest on the file system of DIR"
    group.add_argument("--temp", type=Path, metavar="DIR", help=text)
    group.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(arguments: Arguments) -> int:
    return asyncio.run(_show(arguments))


async def _show(arguments: Arguments) -> int:
    from sluice.console.progress import ProgressLine  # noqa: PLC0415
    from store.exports.snapshot import Snapshot  # noqa: PLC0415
    from store.exports.until import Until  # noqa: PLC0415

    until = arguments.at or Until()
    with ProgressLine() as progress:
        replayed = 0

        def report(count: int) -> None:
            nonlocal replayed
            replayed += count
            progress.report("replaying the log:", replayed, 0)

        bases = [*arguments.base, *arguments.more_bases]
        snapshot = await Snapshot.open(arguments.data_dir, until, bases, arguments.temp, report)
    try:
        if not arguments.json:
            print(f"as of {format_time(snapshot.time_ms)}, position {snapshot.position}", file=sys.stderr)
        found = False
        async with aclosing(arguments.show(snapshot, arguments)) as rows:
            async for row, line in rows:
                print_result(arguments, row, line)
                found = True
    finally:
        await snapshot.close()
    if not found:
        print(f"{arguments.full_name}: nothing found", file=sys.stderr)
    return 0 if found else NOT_FOUND


async def _session(snapshot: "Snapshot", arguments: Arguments) -> AsyncIterator[tuple[Row, str]]:
    session = await snapshot.session(arguments.name.encode())
    if session is None:
        return
    row = {name: to_json(value) for name, value in asdict(session).items()}
    state = f"closed at {format_time(session.closed_at)}" if session.closed_at else "open"
    expiry = "never" if session.expiry_interval == NEVER else f"{session.expiry_interval} s after it closes"
    lines = [f"{printable(arguments.name)}: {state}, epoch {session.epoch}, expires {expiry}"]
    for each in session.subscriptions:
        lines.append(
            f"  {printable(each.topic_filter.decode())} qos {each.qos}, acknowledged up to offset {each.offset}"
        )
    if session.inbound:
        lines.append(f"  received, waiting for PUBREL: {', '.join(map(str, session.inbound))}")
    for sent in session.outbound:
        state = "released" if sent.released else "sent"
        where = f"offset {sent.offset} of {printable(sent.topic_filter.decode())}"
        lines.append(f"  packet id {sent.packet_id} {state}, {where}")
    yield row, "\n".join(lines)


async def _sessions(snapshot: "Snapshot", _: Arguments) -> AsyncIterator[tuple[Row, str]]:
    after: bytes | None = None
    while page := await snapshot.sessions_open(after, PAGE):
        for client, epoch, expiry, gateway in page:
            name = client.decode()
            row = {"client_id": name, "epoch": epoch, "expiry_interval": expiry}
            yield row | ({"gateway": gateway.decode()} if gateway else {}), printable(name)
        after = page[-1][0]


async def _retained(snapshot: "Snapshot", arguments: Arguments) -> AsyncIterator[tuple[Row, str]]:
    after: bytes | None = None
    while page := await snapshot.retained(arguments.name.encode(), after, PAGE):
        for value in page:
            row = describe(value.frame, 0)
            yield row, human(row)
        after = page[-1].topic


async def _topics(snapshot: "Snapshot", arguments: Arguments) -> AsyncIterator[tuple[Row, str]]:
    after: bytes | None = None
    while True:
        page = await snapshot.topics(arguments.name.encode(), after, PAGE)
        for topic in page.names:
            yield {"topic": topic.decode()}, printable(topic.decode())
        after = page.after
        if after is None:
            return


async def _partitions(snapshot: "Snapshot", arguments: Arguments) -> AsyncIterator[tuple[Row, str]]:
    for number, bounds in enumerate(await snapshot.partition_bounds(arguments.name.encode())):
        yield {"partition": number, **asdict(bounds)}, f"{number}: [{bounds.begin}, {bounds.end})"


async def _offsets(snapshot: "Snapshot", arguments: Arguments) -> AsyncIterator[tuple[Row, str]]:
    after: bytes | None = None
    while True:
        page = await snapshot.children(b"", after, PAGE)
        for child in page.children:
            offsets = await snapshot.group_offsets(arguments.name.encode(), child.name)
            for partition, offset in sorted(offsets.items()):
                parent = child.name.decode()
                row = {"parent": parent, "partition": partition, "offset": offset}
                yield row, f"{printable(parent)}/{partition}: {offset}"
        after = page.after
        if after is None:
            return


async def _groups(snapshot: "Snapshot", _: Arguments) -> AsyncIterator[tuple[Row, str]]:
    after: bytes | None = None
    while page := await snapshot.groups(after, PAGE):
        for group in page:
            queues = [queue_row(queue) for queue in group.queues]
            lines = [printable(group.group.decode())]
            for queue in queues:
                where = f"finished up to offset {queue['floor']}, {queue['unfinished']} leased or to be retried"
                lines.append(f"  {queue['kind']} {printable(queue['name'])}: {where}, lag {queue['lag']}")
            yield {"group": group.group.decode(), "queues": queues}, "\n".join(lines)
        after = page[-1].group


async def _dead_letters(snapshot: "Snapshot", arguments: Arguments) -> AsyncIterator[tuple[Row, str]]:
    from record import split  # noqa: PLC0415
    from store.api import dead_letter_queue  # noqa: PLC0415

    queue = dead_letter_queue(arguments.name.encode())
    at = (await snapshot.bounds(queue)).begin
    while (page := await snapshot.fetch(queue, at, PAGE, PAGE_BYTES)).count:
        letters = snapshot.dead_letters(queue, page.offset, page.count)
        for index, (start, letter) in enumerate(zip(split(page.data), letters, strict=True)):
            row = describe(page.data, start) | {"offset": page.offset + index} | asdict(letter)
            kind, name = _queue_of(letter.queue)
            row |= {"queue": name, "queue_kind": kind, "queue_offset": letter.offset}
            row |= {"reason": letter.reason.name.lower(), "error": letter.error.decode(errors="replace")}
            times = f"first at {format_time(letter.first_ms)}, last at {format_time(letter.last_ms)}"
            why = f"{row['reason'].replace('_', ' ')} at delivery {letter.deliveries}, {times}"
            error = f": {printable(row['error'])}" if letter.error else ""
            where = f"offset {letter.offset} of {kind} {printable(name)}"
            yield row, f"{human(row)}\n  {why}, {where}{error}"
        at = page.next_offset


async def _delayed(snapshot: "Snapshot", _: Arguments) -> AsyncIterator[tuple[Row, str]]:
    async for row in _held(snapshot.timers):
        topic, publisher = printable(row["topic"]), printable(row["publisher"]) or "-"
        yield row, f"{row['id']:>12} {topic} due {format_time(row['due_ms'])} from {publisher}"


async def _transactions(snapshot: "Snapshot", _: Arguments) -> AsyncIterator[tuple[Row, str]]:
    async for row in _held(snapshot.transactions):
        due = "" if row["due_ms"] is None else f" due {format_time(row['due_ms'])}"
        topic, publisher = printable(row["topic"]), printable(row["publisher"]) or "-"
        yield row, f"{row['id']:>12} {topic}{due} from {publisher}, checked {row['rounds']} times"


async def _held(fetch: "Callable[[bytes | None, int], Awaitable[HeldPage]]") -> AsyncIterator[Row]:
    after: bytes | None = None
    while True:
        page = await fetch(after, PAGE)
        for held in page.messages:
            names = {"topic": held.topic.decode(), "publisher": held.publisher.decode(errors="replace")}
            yield {"id": held.handle, **names, "due_ms": held.due_ms, "rounds": held.rounds}
        after = page.after
        if after is None:
            return


async def _digest(snapshot: "Snapshot", _: Arguments) -> AsyncIterator[tuple[Row, str]]:
    digest = (await snapshot.digest()).hex()
    yield {"position": snapshot.position, "digest": digest}, digest


def queue_row(queue: "GroupQueueState") -> Row:
    """Describe a queue of a group: its kind, its name and the group's place in it."""
    kind, name = _queue_of(queue.queue)
    row: Row = {"kind": kind, "name": name}
    return row | {"floor": queue.floor, "next": queue.next, "unfinished": queue.unfinished, "lag": queue.lag}


def _queue_of(queue: bytes) -> tuple[str, str]:
    """The kind and the name of a queue."""
    kind, name = QUEUES[queue[:1]], queue[1:]
    return kind, f"{name[:-3].decode()}/{int.from_bytes(name[-2:], 'big')}" if queue[:1] == b"p" else name.decode()
