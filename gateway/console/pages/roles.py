"""Roles: rules that users have together."""

from gateway.console.texts import counted, link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb


async def roles(visit: Visit) -> dict[str, object]:
    reply = await visit.ask(pb.ListRolesRequest(after=visit.optional("after"), limit=PAGE_ROWS))
    return {
        "rows": reply.roles,
        "after": reply.after if reply.HasField("after") else None,
        "lacking": await visit.lacking(change=pb.Role(), delete=pb.DeleteRoleRequest()),
    }


async def change(visit: Visit) -> str:
    visit.back = link("roles")
    name = visit.line("name")
    rules = [line.strip() for line in visit.text("rules").splitlines() if line.strip()]
    await visit.ask(pb.Role(name=name, rules=rules, inherits=visit.text("inherits").split()))
    return f"The role {name} has {counted(len(rules), 'rule', 'rules')}."


async def delete(visit: Visit) -> str:
    visit.back = link("roles")
    name = visit.text("name")
    await visit.ask(pb.DeleteRoleRequest(name=name))
    return f"The role {name} is deleted."
