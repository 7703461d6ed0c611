"""Users, and the rules that say what they may do."""

import sys
from typing import Final

from gateway.console.texts import counted, link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid

_LAST_BELOW: Final = 0xD7FF  # the character before the surrogates, which no text has
_LAST_SURROGATE: Final = 0xDFFF


async def access(visit: Visit) -> dict[str, object]:
    users = await visit.ask(pb.ListUsersRequest(after=visit.text("users_after"), limit=PAGE_ROWS))
    rules = await visit.ask(pb.ListRulesRequest(after=visit.optional("rules_after"), limit=PAGE_ROWS))
    change = pb.SetRulesRequest()
    values: dict[str, object] = {"users": users, "rules": rules, "lacking": await visit.lacking(change=change)}
    values["verdict"] = await _verdict(visit) if visit.text("topic") else None
    return values | {"asked": {name: visit.text(name) for name in ("user", "client_id", "does", "topic")}}


async def _verdict(visit: Visit) -> pb.CheckRulesReply:
    action = "publish" if visit.text("does") == "publish" else "subscribe"
    request = pb.CheckRulesRequest(
        user=visit.text("user"), client_id=visit.text("client_id"), action=action, resource=visit.text("topic")
    )
    reply = await visit.ask(request)
    assert isinstance(reply, pb.CheckRulesReply)
    return reply


async def user(visit: Visit) -> dict[str, object]:
    """One user, or with an empty name everybody, with the rules."""
    name = visit.text("name")
    rows: list[str] = []
    # The page begins after the last name that is before this one.
    reply = await visit.ask(pb.ListRulesRequest(after=_before(name), limit=1))
    for each in reply.rules:
        if each.user == name:
            rows = list(each.rules)
    found = None
    if name:
        users = await visit.ask(pb.ListUsersRequest(after=_before(name), limit=1))
        found = next((each for each in users.users if each.name == name), None)
    return {
        "name": name,
        "rules": rows,
        "user": found,
        "lacking": await visit.lacking(change=pb.SetRulesRequest(user=name), ban=pb.SetBanRequest()),
    }


async def create_user(visit: Visit) -> str:
    visit.back = link("access")
    name = visit.text("name")
    await visit.ask(pb.CreateUserRequest(name=name, password=_password(visit)))
    visit.back = link("user", name=name)
    return f"The user {name} is created. It may do what its rules allow."


async def change_password(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("user", name=name)
    await visit.ask(pb.ChangePasswordRequest(name=name, password=_password(visit)))
    return f"{name} has another password, and its clients are disconnected."


async def delete_user(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("user", name=name)
    reply = await visit.ask(pb.DeleteUserRequest(name=name))
    visit.back = link("access")
    return f"The user {name} is deleted, with its rules and {counted(reply.sessions, 'session', 'sessions')}."


async def set_roles(visit: Visit) -> str:
    name, names = visit.text("name"), visit.text("roles").split()
    visit.back = link("user", name=name)
    await visit.ask(pb.UpdateUserRequest(name=name, roles=pb.RoleNames(names=names)))
    return f"{name} has {counted(len(names), 'role', 'roles')}."


async def disable(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("user", name=name)
    await visit.ask(pb.UpdateUserRequest(name=name, disabled=True))
    return f"The user {name} is disabled, and its clients are disconnected."


async def enable(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("user", name=name)
    await visit.ask(pb.UpdateUserRequest(name=name, disabled=False))
    return f"The user {name} may log in again."


async def set_rules(visit: Visit) -> str:
    name = visit.text("name")
    visit.back = link("user", name=name)
    rules = [line.strip() for line in visit.text("rules").splitlines() if line.strip()]
    await visit.ask(pb.SetRulesRequest(user=name, rules=rules))
    return f"The rules of {name or 'everybody'} are replaced by {counted(len(rules), 'rule', 'rules')}."


def _password(visit: Visit) -> str:
    if visit.text("password") != visit.text("again"):
        raise invalid("the two passwords are not the same")
    return visit.text("password")


def _before(name: str) -> str | None:
    """A text that no user has as a name, and behind which the given name is the next possible one. None: the empty
    name is the first of all."""
    if not name:
        return None
    last = ord(name[-1]) - 1
    return name[:-1] + chr(min(last, _LAST_BELOW) if last <= _LAST_SURROGATE else last) + chr(sys.maxunicode)
