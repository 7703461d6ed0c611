"""The audit log: logins, denials and changes."""

from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb

_EVENTS = ("authentication", "authorization", "administration")


async def audit(visit: Visit) -> dict[str, object]:
    """The newest events, the newest first."""
    event = visit.text("event")
    request = pb.ListAuditRequest(
        limit=PAGE_ROWS,
        until_ms=visit.number("until") or 0,
        user=visit.line("user"),
        event=event if event in _EVENTS else "",
        denied=visit.flag("denied"),
        source=visit.line("source"),
    )
    reply = await visit.ask(request)
    rows = list(reversed(reply.events))
    # The next page begins before the oldest event. Others of its millisecond that are not on this page are passed over.
    older = rows[-1].time_ms if len(rows) == PAGE_ROWS else None
    return {"rows": rows, "older": older, "is_cut": reply.is_cut, "asked": request, "events": _EVENTS}
