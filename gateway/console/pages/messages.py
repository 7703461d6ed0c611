"""Messages by key and by id, and what became of one."""

from typing import Final

from gateway.console.texts import hex_dump, payload_text, pretty
from gateway.console.visit import Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid

_FOUND: Final = 50  # on a page
_PAYLOAD: Final = 4096  # bytes of each
_WHOLE: Final = 65_536  # bytes of the payload of one message


async def messages(visit: Visit) -> dict[str, object]:
    parent, key = visit.line("parent"), visit.line("key")
    values: dict[str, object] = {"parent": parent, "key": key, "found": None}
    values["suggested"] = visit.line("topic_parent")
    if parent and key:
        request = pb.FindMessagesRequest(
            parent=parent, key=key, after=visit.number("after"), limit=_FOUND, max_payload=_PAYLOAD
        )
        values["found"] = await visit.ask(request)
    elif parent or key:
        raise invalid("a search needs the first level of the topic and the key")
    return values


async def message(visit: Visit) -> dict[str, object]:
    position = visit.number("position")
    if position is None:
        raise invalid("which message? The page needs its position")
    found = await visit.ask(pb.GetMessageRequest(position=position, max_payload=_WHOLE))
    trace, why = None, ""
    if visit.flag("trace"):
        trace, why = await visit.try_ask(pb.TraceMessageRequest(position=position, after=visit.key("after")))
    return {
        "message": found,
        "cbor": payload_text(found.cbor),
        "pretty": payload_text(pretty(found)),
        "text": payload_text(found.text) if found.HasField("text") else None,
        "hex": hex_dump(found.payload),
        "shown": len(found.payload),
        "trace": trace,
        "trace_why": why,
    }
