"""Topics: the tree, a search, one topic, and its messages."""

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid

_MESSAGES = 50  # on a page
_PAYLOAD = 4096  # bytes of each


async def topics(visit: Visit) -> dict[str, object]:
    prefix = visit.text("prefix")
    if prefix:
        found = await visit.ask(pb.SearchTopicsRequest(prefix=prefix, after=visit.optional("after"), limit=PAGE_ROWS))
        return {"prefix": prefix, "found": found, "above": ""}
    return {"prefix": "", "found": None, **await level(visit)}


async def level(visit: Visit) -> dict[str, object]:
    """One level of the tree."""
    above = visit.text("above")
    if above and not above.endswith("/"):
        above += "/"
    after = visit.optional("after")
    reply = await visit.ask(pb.ListTopicsRequest(above=above, after=after, limit=PAGE_ROWS, with_rates=True))
    return {"above": above, "level": reply, "up": _above(above), "is_continued": after is not None}


def _above(above: str) -> str | None:
    """The level above a level; None: it is the first."""
    if not above:
        return None
    upper, slash, _ = above[:-1].rpartition("/")
    return upper + slash


async def topic(visit: Visit) -> dict[str, object]:
    name = visit.text("topic")
    about = await visit.ask(pb.GetTopicRequest(topic=name))
    request = pb.BrowseTopicRequest(
        topic=name, offset=visit.number("offset"), time_ms=visit.time("time"), limit=_MESSAGES, max_payload=_PAYLOAD
    )
    messages, why = await visit.try_ask(request)
    first = messages.messages[0].offset if messages is not None and messages.messages else None
    earlier = None
    if messages is not None and first is not None and first > messages.begin:
        earlier = max(first - _MESSAGES, messages.begin)
    lacking = await visit.lacking(read=pb.BrowseTopicRequest(topic=name))
    return {
        "topic": about,
        "messages": messages,
        "why": why,
        "earlier": earlier,
        "may_read": not lacking["read"],
        "partition_count": len(about.partitions),
    }


async def publish(visit: Visit) -> str:
    name = visit.text("topic")
    visit.back = link("topic", topic=name)
    qos = visit.number("qos") or 0
    if qos < 0:
        raise invalid("a QoS is 0, 1 or 2")
    request = pb.PublishMessageRequest(
        topic=name, text=visit.text("text").replace("\r\n", "\n"), qos=qos, retain=visit.flag("retain")
    )
    if visit.line("key"):
        request.properties.add(name="key", value=visit.line("key"))
    reply = await visit.ask(request)
    return f"Published to {name}: the message is stored at position {reply.position}."
