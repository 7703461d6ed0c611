"""Events: found by time, type, source and id, and what became of one at each rule."""

import json
from typing import Final

from gateway.console.visit import Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid
from store.api import EVENT_RULE

_FOUND: Final = 50  # on a page
_FIELDS: Final = ("topic", "type", "source", "id", "since", "until")


async def events(visit: Visit) -> dict[str, object]:
    wanted = {name: visit.line(name) for name in _FIELDS}
    values: dict[str, object] = {"wanted": wanted, "rows": None, "after": None}
    if wanted["topic"]:
        request = pb.FindEventsRequest(
            topic=wanted["topic"],
            id=wanted["id"],
            source=wanted["source"],
            type=wanted["type"],
            since_ms=visit.time("since") or 0,
            until_ms=visit.time("until") or 0,
            after=visit.optional("after"),
            limit=_FOUND,
        )
        reply = await visit.ask(request)
        values["rows"] = [(each, _fields(each)) for each in reply.events]
        values["after"] = reply.after if reply.HasField("after") else None
    return values


async def event(visit: Visit) -> dict[str, object]:
    position = visit.number("position")
    if position is None:
        raise invalid("which event? The page needs the position of its message")
    trace = await visit.ask(pb.TraceMessageRequest(position=position, after=visit.key("after")))
    group = EVENT_RULE.decode()
    return {
        "position": position,
        "rows": [(each.who.removeprefix(group), each) for each in trace.events if each.who.startswith(group)],
        "after": trace.after.hex() if trace.HasField("after") else None,
    }


def _fields(stored: pb.StoredEvent) -> dict[str, str]:
    """The attributes of an event, and its data as a text."""
    fields = json.loads(stored.event)
    data = fields.get("data", fields.get("data_base64", ""))
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return {"type": fields["type"], "source": fields["source"], "id": fields["id"], "data": text}
