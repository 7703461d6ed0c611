"""Event rules: which there are, what each does and has done, and what one would make of an event."""

import json

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid

_EXAMPLE = {"sql": 'SELECT payload.t AS t FROM "fleet/+/temp" WHERE t > 30', "topic": {"topic": "alerts/hot"}}
_EVENT = {"subject": "fleet/7/temp", "data": {"t": 31}}
_STARTS = ("", "now", "earliest", "time")


async def rules(visit: Visit) -> dict[str, object]:
    reply = await visit.ask(pb.ListEventRulesRequest(after=visit.optional("after"), limit=PAGE_ROWS))
    return {
        "rows": reply.rules,
        "after": reply.after if reply.HasField("after") else None,
        "lacking": await visit.lacking(set=pb.SetEventRuleRequest()),
        "definition": _pretty(_EXAMPLE),
    }


async def rule(visit: Visit) -> dict[str, object]:
    name = visit.text("name")
    found = await visit.ask(pb.GetEventRuleRequest(name=name))
    event, position = visit.text("event"), visit.number("position")
    tested: pb.TestEventRuleReply | None = None
    trouble = ""
    if event or position is not None:
        request = pb.TestEventRuleRequest(name=name, topic=visit.line("topic"))
        if position is not None:
            request.position = position
        else:
            request.json = event
        tested, trouble = await visit.try_ask(request)
    changes = {"set": pb.SetEventRuleRequest(), "pause": pb.PauseEventRuleRequest()}
    definition = MessageToDict(found.definition, preserving_proto_field_name=True)
    return {
        "rule": found,
        "definition": _pretty(definition),
        "event": event or _pretty(_EVENT),
        "topic": visit.text("topic"),
        "position": visit.text("position"),
        "tested": tested,
        "trouble": trouble,
        "lacking": await visit.lacking(**changes, delete=pb.DeleteEventRuleRequest()),
    }


async def change(visit: Visit) -> str:
    name = visit.line("name")
    visit.back = link("rule", name=name) if visit.flag("is_there") else link("rules")
    request = pb.SetEventRuleRequest(name=name)
    try:
        fields = json.loads(visit.text("definition"))
        if not isinstance(fields, dict):
            raise invalid("a definition is a JSON object")
        if isinstance(fields.get("pattern"), dict):
            fields["pattern"] = json.dumps(fields["pattern"])
        ParseDict(fields, request.definition)
    except (ValueError, RecursionError, ParseError) as error:
        raise invalid(f"the definition cannot be read: {error}") from error
    start = visit.text("start")
    if start not in _STARTS:
        raise invalid("a rule begins now, at the oldest message, or at a time")
    if start == "now":
        request.now = True
    elif start == "earliest":
        request.earliest = True
    elif start == "time":
        time_ms = visit.time("time")
        if time_ms is None:
            raise invalid("a rule that begins at a time needs the time")
        request.time_ms = time_ms
    await visit.ask(request)
    visit.back = link("rule", name=name)
    return f"The rule {name} is set."


async def pause(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("rule", name=name)
    await visit.ask(pb.PauseEventRuleRequest(name=name))
    return f"The rule {name} is paused."


async def resume(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("rule", name=name)
    await visit.ask(pb.ResumeEventRuleRequest(name=name))
    return f"The rule {name} goes on."


async def delete(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("rule", name=name)
    await visit.ask(pb.DeleteEventRuleRequest(name=name))
    visit.back = link("rules")
    return f"The rule {name} is deleted. Its dead letters stay."


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
