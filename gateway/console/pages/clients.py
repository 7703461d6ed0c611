"""Clients and their sessions."""

import time
from typing import Final

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb

_MOST_PACKETS: Final = 5_000  # on a page
_SEARCH_S: Final = 0.1  # that a page goes on for while it finds nobody; each call looks at up to 1,000 sessions


async def clients(visit: Visit) -> dict[str, object]:
    prefix, user, connected = visit.text("prefix"), visit.text("user"), visit.flag("connected")
    after = visit.optional("after")
    rows: list[pb.Client] = []
    until = time.monotonic() + _SEARCH_S
    while True:
        request = pb.ListClientsRequest(after=after, limit=PAGE_ROWS, prefix=prefix, user=user, connected=connected)
        reply = await visit.ask(request)
        rows, after = list(reply.clients), reply.after if reply.HasField("after") else None
        if rows or after is None or time.monotonic() >= until:
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
    trace = pb.BeginTraceRequest(client_id=name)
    return {"client": found, "lacking": await visit.lacking(kick=kick, end=end, trace=trace)}


async def trace(visit: Visit) -> dict[str, object]:
    """The page of a trace, which asks for the packets (`packets`) again and again."""
    about = {"id": visit.text("id"), "trace": visit.text("trace")}
    return {**about, "packets": (), "dropped": 0, "why": "", "over": False, "is_full": False, "shown": 0}


async def packets(visit: Visit) -> dict[str, object]:
    """What a trace has noted since the last look. Waits for something, as `ReadTrace` does."""
    name, trace = visit.text("id"), visit.text("trace")
    reply, why = await visit.try_ask(pb.ReadTraceRequest(client_id=name, trace=trace))
    shown = (visit.number("shown") or 0) + (len(reply.packets) if reply is not None else 0)
    return {
        "id": name,
        "trace": trace,
        "packets": reply.packets if reply is not None else (),
        "dropped": reply.dropped if reply is not None else 0,
        "over": reply is not None and reply.over,
        "why": why,
        "is_full": shown >= _MOST_PACKETS,
        "shown": shown,
    }


async def begin_trace(visit: Visit) -> str:
    name = visit.text("id")
    visit.back = link("client", id=name)
    begun = await visit.ask(pb.BeginTraceRequest(client_id=name, seconds=visit.number("seconds") or 0))
    visit.back = link("client/trace", id=name, trace=begun.trace)
    return f"The packets of {name} are shown below."


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
