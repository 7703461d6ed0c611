"""Schemas of payloads: the subjects and their versions, and the topic filters that are bound to them."""

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.schemas.kinds import KINDS

_EXAMPLE = '{\n  "type": "object",\n  "properties": {"t": {"type": "number"}},\n  "required": ["t"]\n}'


async def schemas(visit: Visit) -> dict[str, object]:
    reply = await visit.ask(pb.ListSubjectsRequest(after=visit.optional("after"), limit=PAGE_ROWS))
    bindings = await visit.ask(pb.ListBindingsRequest())
    return {
        "rows": reply.subjects,
        "after": reply.after if reply.HasField("after") else None,
        "bindings": bindings.bindings,
        "kinds": KINDS,
        "text": _EXAMPLE,
        "lacking": await visit.lacking(
            register=pb.RegisterSchemaRequest(), bind=pb.SetBindingRequest(), unbind=pb.DeleteBindingRequest()
        ),
    }


async def schema(visit: Visit) -> dict[str, object]:
    name = visit.text("name")
    subject = await visit.ask(pb.GetSubjectRequest(name=name))
    wanted = visit.number("version")
    version = next((each for each in subject.versions if each.number == wanted), subject.versions[-1])
    payload = visit.text("payload")
    fault, trouble = "", ""
    if payload:
        request = pb.CheckPayloadRequest(name=name, version=version.number, payload=payload.encode())
        reply, trouble = await visit.try_ask(request)
        fault = reply.fault if reply is not None else ""
    return {
        "subject": subject,
        "version": version,
        "schema": await visit.ask(pb.GetSchemaRequest(id=version.id)),
        "payload": payload,
        "fault": fault,
        "trouble": trouble,
        "kinds": KINDS,
        "lacking": await visit.lacking(register=pb.RegisterSchemaRequest(), delete=pb.DeleteSubjectRequest()),
    }


async def register(visit: Visit) -> str:
    name = visit.line("name")
    visit.back = link("schema", name=name) if visit.flag("is_there") else link("schemas")
    request = pb.RegisterSchemaRequest(name=name, kind=visit.text("kind"), text=visit.text("text"))
    version = await visit.ask(request)
    visit.back = link("schema", name=name)
    return f"{name} has it as version {version.number}, with the id {version.id}."


async def delete(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("schema", name=name)
    await visit.ask(pb.DeleteSubjectRequest(name=name))
    visit.back = link("schemas")
    return f"The subject {name} is deleted. Its schemas stay under their ids."


async def bind(visit: Visit) -> str:
    visit.back = link("schemas")
    request = pb.SetBindingRequest(
        topic_filter=visit.line("topic_filter"),
        name=visit.line("subject"),
        mode=visit.text("mode"),
        quarantine=visit.line("quarantine"),
    )
    binding = await visit.ask(request)
    return f"Payloads of {binding.topic_filter} are held against {binding.subject}."


async def unbind(visit: Visit) -> str:
    visit.back = link("schemas")
    topic_filter = visit.text("topic_filter")
    await visit.ask(pb.DeleteBindingRequest(topic_filter=topic_filter))
    return f"Payloads of {topic_filter} are not held against a schema any more."
