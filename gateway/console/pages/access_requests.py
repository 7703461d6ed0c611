"""Requests for access: what users ask for, and what was decided."""

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb


async def requests(visit: Visit) -> dict[str, object]:
    """The requests that are open, or were decided: the person's own, and those that the person may decide."""
    decided = visit.flag("decided")
    asked = pb.ListAccessRequestsRequest(
        decided=decided, user=visit.line("user"), after=visit.optional("after"), limit=PAGE_ROWS
    )
    reply = await visit.ask(asked)
    return {
        "rows": reply.requests,
        "after": reply.after if reply.HasField("after") else None,
        "decided": decided,
        "user": visit.line("user"),
        "lacking": await visit.lacking(ask=pb.RequestAccessRequest()),
        "actions": visit.line("actions"),
        "resource": visit.line("resource"),
    }


async def ask(visit: Visit) -> str:
    visit.back = link("requests")
    request = pb.RequestAccessRequest(
        actions=visit.line("actions"), resource=visit.line("resource"), reason=visit.line("reason")
    )
    found = await visit.ask(request)
    return f"Asked for: {found.rule}. Somebody has to decide about it."


async def approve(visit: Visit) -> str:
    visit.back = link("requests")
    request = pb.ApproveAccessRequestRequest(number=visit.number("number") or 0, why=visit.line("why"))
    found = await visit.ask(request)
    return f"Approved. The first rule of {found.user} is: {found.rule}."


async def decline(visit: Visit) -> str:
    visit.back = link("requests")
    request = pb.DeclineAccessRequestRequest(number=visit.number("number") or 0, why=visit.line("why"))
    found = await visit.ask(request)
    return f"Declined: {found.rule} for {found.user}."
