"""Who calls the management surface, and what they may do.

On the administration socket, the caller is the node's own user, and may do everything. Everybody else needs rules:
where nobody wrote a rule, nothing is allowed, whatever the default of a front is for its own clients. Reading and
publishing messages needs the rules of the topic itself. All else needs rules about the name
`$management/<kind>/<name>`: to subscribe to it in order to look, and to publish to it in order to change something.
"""

from typing import Final, Protocol

import grpc
from google.protobuf.message import Message

from gateway.auth.authority import Authority
from gateway.auth.callers import Caller
from gateway.management.methods import Method
from gateway.management.proto.options_pb2 import GET, LIST, PUB, SUB, TOPIC, Action, Kind, Right
from gateway.rpc.status import RequestError
from matcher.reserved import MANAGEMENT

_LOOKS: Final = frozenset((GET, LIST))
_ALL: Final = "#"


class Manager(Protocol):
    """The caller of a method."""

    name: str  # of its user; "": none
    source: str  # its address

    async def may(self, action: Action, kind: Kind, name: str) -> bool:
        """Whether it may do this to a resource. name: for a topic, also a filter. Raises `StoreError`."""


class SuperUser:
    """The node's own user, or root. May do everything."""

    name = ""
    source = "the administration socket"

    async def may(self, _action: Action, _kind: Kind, _name: str) -> bool:
        return True


SUPER_USER: Final = SuperUser()


class RemoteManager:
    """A caller over gRPC or HTTP."""

    def __init__(self, authority: Authority, caller: Caller, source: str) -> None:
        self._authority = authority
        self._caller = caller
        self.name = caller.user_name.decode()
        self.source = source

    async def may(self, action: Action, kind: Kind, name: str) -> bool:
        if self._caller.is_revoked:
            return False
        publishes = action not in _LOOKS and action != SUB
        resource = name.encode() if kind == TOPIC and action in {PUB, SUB} else resource_name(kind, name)
        return await self._authority.has_rule(self._caller.user_name, resource, publishes)


def resource_name(kind: Kind, name: str) -> bytes:
    """The name by which rules speak of a resource."""
    return b"/".join((MANAGEMENT, Kind.Name(kind).lower().encode(), name.encode()))


def resource_of(right: Right, request: Message) -> str:
    """The name of the resource that a right is about, for this request."""
    if right.name:
        return right.name
    if not right.field:
        return _ALL
    name: str = getattr(request, right.field)
    if not right.below:
        return name
    return name + _ALL if not name or name.endswith("/") else f"{name}/{_ALL}"


async def require(manager: Manager, method: Method, request: Message) -> None:
    """Raise `RequestError` unless the caller may make this call. Raises `StoreError`."""
    for right in method.rights:
        if not right.each:
            await require_one(manager, right.action, right.kind, resource_of(right, request))


async def require_one(manager: Manager, action: Action, kind: Kind, name: str) -> None:
    """Raise `RequestError` unless the caller may do this to a resource. Raises `StoreError`."""
    if not await manager.may(action, kind, name):
        what = f"{Action.Name(action)} {Kind.Name(kind).lower()} {name}"
        raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"this needs the right to {what}, and no rule allows it")
