"""Cloud services that are connected."""

from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb


async def services(visit: Visit) -> dict[str, object]:
    group, user, name = visit.text("group"), visit.text("user"), visit.text("name")
    request = pb.ListServicesRequest(after=visit.optional("after"), limit=PAGE_ROWS, group=group, user=user, name=name)
    reply = await visit.ask(request)
    return {
        "rows": reply.services,
        "after": reply.after if reply.HasField("after") else None,
        "unknown": reply.unknown,
        "group": group,
        "user": user,
        "name": name,
    }


async def service(visit: Visit) -> dict[str, object]:
    return {"service": await visit.ask(pb.GetServiceRequest(id=visit.text("id")))}
