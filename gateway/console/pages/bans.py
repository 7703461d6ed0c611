"""Who is not let in, until when and why."""

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid

_KINDS = ("client", "user", "address")


async def bans(visit: Visit) -> dict[str, object]:
    reply = await visit.ask(pb.ListBansRequest(after=visit.optional("after"), limit=PAGE_ROWS))
    return {
        "rows": reply.bans,
        "after": reply.after if reply.HasField("after") else None,
        "lacking": await visit.lacking(add=pb.SetBanRequest(), end=pb.EndBanRequest()),
        "kind": visit.text("kind"),
        "name": visit.text("name"),
    }


async def add(visit: Visit) -> str:
    visit.back = link("bans")
    if visit.text("kind") not in _KINDS or not visit.line("name"):
        raise invalid("a ban names a client id, a user or a network")
    target = f"{visit.text('kind')}:{visit.line('name')}"
    await visit.ask(pb.SetBanRequest(target=target, until_ms=visit.time("until") or 0, reason=visit.line("reason")))
    return f"Banned: {target}. Its connections are closed."


async def end(visit: Visit) -> str:
    visit.back = link("bans")
    target = visit.text("target")
    await visit.ask(pb.EndBanRequest(target=target))
    return f"The ban of {target} has ended."
