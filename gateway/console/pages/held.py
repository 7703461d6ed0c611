"""Delayed messages, and those of open transactions."""

from collections.abc import Sequence

from gateway.console.texts import link, messages
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid


async def held(visit: Visit) -> dict[str, object]:
    after = visit.key("after")
    is_timers = visit.text("kind") != "transactions"
    request = pb.ListTimersRequest if is_timers else pb.ListTransactionsRequest
    reply = await visit.ask(request(after=after, limit=PAGE_ROWS))
    return {
        "is_timers": is_timers,
        "rows": reply.messages,
        "after": reply.after.hex() if reply.HasField("after") else None,
    }


async def recall(visit: Visit) -> str:
    visit.back = link("held")
    positions = _positions(visit)
    reply = await visit.ask(pb.RecallTimersRequest(positions=positions))
    return f"Recalled: {messages(len(positions) - len(reply.missing))}." + _left_out(reply.missing)


async def end(visit: Visit) -> str:
    visit.back = link("held", kind="transactions")
    positions, commit = _positions(visit), visit.text("how") == "commit"
    reply = await visit.ask(pb.EndTransactionsRequest(positions=positions, commit=commit))
    done = "Committed" if commit else "Rolled back"
    return f"{done}: {messages(len(positions) - len(reply.missing))}." + _left_out(reply.missing)


async def unsaid(visit: Visit) -> str:
    """Somebody pressed Enter in the list: change nothing."""
    visit.back = link("held", kind=visit.text("kind"))
    raise invalid("press one of the buttons below the list")


def _positions(visit: Visit) -> list[int]:
    positions = visit.numbers("position")
    if not positions:
        raise invalid("no message is chosen: tick some")
    return positions


def _left_out(missing: Sequence[int]) -> str:
    return f" Not held any more: {messages(len(missing))}." if missing else ""
