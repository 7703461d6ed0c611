"""Clients and their sessions."""

from typing import Final

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb

_SEARCHED: Final = 20  # pages without a row in a row, each of which has looked at up to 1,000 sessions


async def clients(visit: Visit) -> dict[str, object]:
    prefix, user, connected = visit.text("prefix"), visit.text("user"), visit.flag("connected")
    after = visit.optional("after")
    rows: list[pb.Client] = []
    for _ in range(_SEARCHED):
        request = pb.ListClientsRequest(after=after, limit=PAGE_ROWS, prefix=prefix, user=user, connected=connected)
        reply = await visit.ask(request)
        rows, after = list(reply.clients), reply.after if reply.HasField("after") else None
        if rows or after is None:
            break
    return {
        "rows": rows,
        "after": after,
        "prefix": prefix,
        "user": user,
        "connected": connected,
    }


async def client(visit: Visit) -> dict[str, object]:
    name = visit.text("id")
    found = await visit.ask(pb.GetClientRequest(client_id=name))
    kick, end = pb.KickClientRequest(client_id=name), pb.EndSessionRequest(client_id=name)
    return {"client": found, "lacking": await visit.lacking(kick=kick, end=end)}


async def kick(visit: Visit) -> str:
    name = visit.text("id")
    visit.back = link("client", id=name)
    await visit.ask(pb.KickClientRequest(client_id=name))
    visit.back = link("clients", prefix=name)
    return f"The client {name} is disconnected. It may connect again."


async def end(visit: Visit) -> str:
    name = visit.text("id")
    visit.back = link("client", id=name)
    await visit.ask(pb.EndSessionRequest(client_id=name))
    visit.back = link("clients")
    return f"The session of {name} is ended."
