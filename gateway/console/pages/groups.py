"""Consumer groups and their dead letters."""

from gateway.console.texts import letters, link, messages
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid

_LETTERS = 50  # on a page
_PAYLOAD = 1024  # bytes of each
_NAMED = 20  # offsets in a line that says which were left out
_LOOKED_AT = 1000  # groups on a page of those with dead letters
_ORDERS = {"lag": pb.BY_LAG, "slowest": pb.BY_HANDLING_TIME}


async def groups(visit: Visit) -> dict[str, object]:
    prefix, sort = visit.text("prefix"), visit.text("sort")
    order = _ORDERS.get(sort, pb.BY_NAME)
    after = visit.optional("after") if order == pb.BY_NAME else None
    reply = await visit.ask(pb.ListGroupsRequest(after=after, prefix=prefix, limit=PAGE_ROWS, order=order))
    return {
        "rows": reply.groups,
        "after": reply.after if reply.HasField("after") else None,
        "prefix": prefix,
        "sort": sort,
        "is_cut": reply.is_cut,
    }


async def group(visit: Visit) -> dict[str, object]:
    name = visit.text("group")
    about = await visit.ask(pb.GetGroupRequest(group=name))
    reset, delete = pb.ResetGroupRequest(group=name), pb.DeleteGroupRequest(group=name)
    pause = pb.PauseGroupRequest(group=name)
    return {"group": about, "lacking": await visit.lacking(reset=reset, pause=pause, delete=delete)}


async def reset(visit: Visit) -> str:
    name, to = visit.text("group"), visit.text("to")
    visit.back = link("group", group=name)
    request = pb.ResetGroupRequest(group=name, queue=visit.text("queue"))
    if to == "earliest":
        request.earliest = True
    elif to == "latest":
        request.latest = True
    elif to == "time":
        time_ms = visit.time("time")
        if time_ms is None:
            raise invalid("a reset to a time needs the time")
        request.time_ms = time_ms
    reply = await visit.ask(request)
    lag = sum(each.lag for each in reply.queues)
    return f"The group {name} is moved. It is {messages(lag)} behind now."


async def pause(visit: Visit) -> str:
    name = visit.text("group")
    visit.back = link("group", group=name)
    await visit.ask(pb.PauseGroupRequest(group=name))
    return f"The group {name} is paused."


async def resume(visit: Visit) -> str:
    name = visit.text("group")
    visit.back = link("group", group=name)
    await visit.ask(pb.ResumeGroupRequest(group=name))
    return f"The group {name} goes on."


async def delete(visit: Visit) -> str:
    name = visit.text("group")
    visit.back = link("group", group=name)
    await visit.ask(pb.DeleteGroupRequest(group=name))
    visit.back = link("groups")
    return f"The group {name} is deleted. Its dead letters stay."


async def dead_letters(visit: Visit) -> dict[str, object]:
    """The dead letters of a group, or the groups that have some."""
    name = visit.text("group")
    if not name:
        reply = await visit.ask(pb.ListGroupsRequest(after=visit.optional("after"), limit=_LOOKED_AT))
        rows = [row for row in reply.groups if row.dead_letters]
        return {"group": "", "rows": rows, "after": reply.after if reply.HasField("after") else None}
    request = pb.ListDeadLettersRequest(group=name, after=visit.number("after"), limit=_LETTERS, max_payload=_PAYLOAD)
    reply = await visit.ask(request)
    requeue, remove = pb.RequeueDeadLettersRequest(group=name), pb.DeleteDeadLettersRequest(group=name)
    return {
        "group": name,
        "letters": reply.dead_letters,
        "after": reply.after if reply.HasField("after") else None,
        "lacking": await visit.lacking(requeue=requeue, delete=remove),
    }


async def requeue(visit: Visit) -> str:
    name = visit.text("group")
    visit.back = link("dead-letters", group=name)
    request = pb.RequeueDeadLettersRequest(group=name, topic=visit.line("topic"))
    _choose(visit, request)
    reply = await visit.ask(request)
    return f"Published again: {letters(reply.requeued)}." + _left_out(reply)


async def delete_letters(visit: Visit) -> str:
    name = visit.text("group")
    visit.back = link("dead-letters", group=name)
    request = pb.DeleteDeadLettersRequest(group=name)
    _choose(visit, request)
    reply = await visit.ask(request)
    return f"Deleted: {letters(reply.deleted)}." + _left_out(reply)


async def letters_unsaid(visit: Visit) -> str:
    """Somebody pressed Enter in the list of dead letters: change nothing."""
    visit.back = link("dead-letters", group=visit.text("group"))
    raise invalid("press one of the buttons below the list")


def _choose(visit: Visit, request: pb.RequeueDeadLettersRequest | pb.DeleteDeadLettersRequest) -> None:
    """Take over which dead letters the form names. Raises `RequestError`."""
    if visit.text("which") == "all":
        request.all = True
        return
    request.offsets.extend(visit.numbers("offset"))
    if not request.offsets:
        raise invalid("no dead letter is chosen: tick some, or choose all of them")


def _left_out(reply: pb.RequeueDeadLettersReply | pb.DeleteDeadLettersReply) -> str:
    text = ""
    if reply.missing:
        names = ", ".join(map(str, reply.missing[:_NAMED]))
        text = f" Not there any more, or leased by a consumer: {names}."
    if reply.leased:
        text += f" Left because a consumer has them now: {letters(reply.leased)}."
    return text
