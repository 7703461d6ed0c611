"""`sluice event`: find stored events."""

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sluice.console.command import Arguments, Subparsers, add_actions, add_limit, declare, print_result
from sluice.console.records import printable
from sluice.console.times import format_time, milliseconds, parse_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.management.proto import management_pb2 as pb

EXAMPLE: Final = "sluice event find 'fleet/#' --type reading --since 2025-06-01T12:00:00Z --data-dir /var/lib/sluice"
_SHOWN: Final = 60  # characters of the data on a line for people


def add(subparsers: Subparsers) -> None:
    about = "find stored events by time, type, source and id"
    actions = add_actions(declare(subparsers, "event", about, EXAMPLE))
    finding = declare(actions, "find", f"{about}; the oldest first", EXAMPLE, _find)
    finding.add_argument("topic", metavar="TOPIC", help="topic filter, whose first level is no wildcard")
    text = "its id; without a time, it is looked up among the keys of messages, and as the position of one"
    finding.add_argument("--id", default="", help=text)
    finding.add_argument("--source", default="", help="its source, such as /clients/device-7")
    finding.add_argument("--type", default="", help="its type, such as io.sluice.message")
    finding.add_argument("--since", type=parse_time, metavar="TIME", help="stored from then on (ISO 8601)")
    finding.add_argument("--until", type=parse_time, metavar="TIME", help="stored before")
    add_limit(finding, "events", 100)
    management.add_arguments(finding)


def _find(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.FindEventsRequest(topic=arguments.topic, id=arguments.id, source=arguments.source, type=arguments.type)
    request.since_ms = milliseconds(arguments.since) if arguments.since else 0
    request.until_ms = milliseconds(arguments.until) if arguments.until else 0
    with management.connect(arguments) as link:
        found = management.pages(link, "FindEvents", request, pb.FindEventsReply, arguments.limit, "events")
        for event in islice(found, arguments.limit):
            fields = json.loads(event.event)
            print_result(arguments, _row(event, fields), _line(event, fields))
        if next(found, None) is not None:
            print(f"{arguments.full_name}: there are more events: raise --limit", file=sys.stderr)
    return 0


def _row(event: "pb.StoredEvent", fields: dict[str, Any]) -> dict[str, Any]:
    return {"position": event.position, "time_ms": event.time_ms, "topic": event.topic, "event": fields}


def _line(event: "pb.StoredEvent", fields: dict[str, Any]) -> str:
    data = fields.get("data", fields.get("data_base64", ""))
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    names = " ".join(printable(str(fields[name])) for name in ("type", "source", "id"))
    return f"{event.position:>12} {format_time(event.time_ms)} {printable(event.topic)} {names}: {shown!r}"
