"""Who calls the management surface, and what they may do.

On the administration socket, the caller is the node's own user, and may do everything. Everybody else needs rules:
where nobody wrote a rule, nothing is allowed, whatever the default of a front is for its own clients.
"""

from typing import Final, Protocol

import grpc
from google.protobuf.message import Message

from gateway.auth.authority import Authority
from gateway.auth.callers import Caller
from gateway.auth.rules.sources import host_of
from gateway.management.methods import Method
from gateway.management.proto.options_pb2 import GET, LIST, PUB, SUB, TOPIC, Action, Kind, Right
from gateway.rpc.status import RequestError
from matcher.names import has_wildcard

REQUEST_ID: Final = "x-request-id"  # header, or metadata
_ALL_TOPICS: Final = "#"


class Manager(Protocol):
    """The caller of a method."""

    name: str  # of its user; "": none
    source: str  # its address
    request: str  # the id that it has given the call; "": none

    async def is_super(self) -> bool:
        """Whether it may do everything, whatever rules say. Raises `StoreError`."""

    async def may(self, action: Action, kind: Kind, name: str, is_prefix: bool = False) -> bool:
        """Whether it may do this to a resource.

        name: for a topic, also a filter. is_prefix: to all resources whose name begins so; not for a topic. Raises
        `StoreError`.
        """

    async def is_denied(self, action: Action, kind: Kind, name: str) -> bool:
        """Whether a rule denies this, which no rule needs to allow. kind: not a topic. Raises `StoreError`."""


class NodeUser:
    """The node's own user, or root, on the administration socket. A super user."""

    name = ""
    request = ""

    def __init__(self, source: str = "the administration socket") -> None:
        self.source = source

    async def is_super(self) -> bool:
        return True

    async def may(self, _action: Action, _kind: Kind, _name: str, _is_prefix: bool = False) -> bool:
        return True

    async def is_denied(self, _action: Action, _kind: Kind, _name: str) -> bool:
        return False


NODE_USER: Final = NodeUser()


class RemoteManager:
    """A caller over gRPC or HTTP."""

    def __init__(self, authority: Authority, caller: Caller, source: str, request: str = "") -> None:
        """request: the id that the caller has given the call; "": none."""
        self.request = request
        self._authority = authority
        self.caller = caller
        self.name = caller.user_name.decode()
        self.source = source

    async def is_super(self) -> bool:
        if self.caller.is_revoked:
            return False
        return await self._authority.permissions(self.caller, host_of(self.source)) is None

    async def may(self, action: Action, kind: Kind, name: str, is_prefix: bool = False) -> bool:
        if self.caller.is_revoked:
            return False
        permissions = await self._authority.permissions(self.caller, host_of(self.source))
        if permissions is None:
            return True
        if kind != TOPIC:
            return permissions.decide(action_bit(action), int(kind), name.encode(), is_prefix) is True
        if action == PUB and not has_wildcard(name.encode()):
            return permissions.may_publish(name.encode())
        if action == SUB:
            return permissions.may_subscribe(name.encode())
        if action in (LIST, GET):
            return permissions.may_look(action_bit(action), name.encode())
        return permissions.decide_topics(action_bit(action), name.encode()) is True

    async def is_denied(self, action: Action, kind: Kind, name: str) -> bool:
        if self.caller.is_revoked:
            return True
        permissions = await self._authority.permissions(self.caller, host_of(self.source))
        return permissions is not None and permissions.decide(action_bit(action), int(kind), name.encode()) is False


def action_bit(action: Action) -> int:
    """An action as rules have it (`store.api.Action`)."""
    return 1 << (int(action) - 1)


def is_about_all(right: Right) -> bool:
    """Whether a right is about all resources of its kind."""
    return not right.name and not right.field


def resource_of(right: Right, request: Message) -> str:
    """The name of the resource that a right is about, for this request; for all topics `#`, for all others "" as the
    prefix of all names."""
    if right.name:
        return right.name
    if not right.field:
        return _ALL_TOPICS if right.kind == TOPIC else ""
    name: str = getattr(request, right.field)
    if not right.below:
        return name
    return name + _ALL_TOPICS if not name or name.endswith("/") else f"{name}/{_ALL_TOPICS}"


async def require(manager: Manager, method: Method, request: Message) -> None:
    """Raise `RequestError` unless the caller may make this call. Raises `StoreError`."""
    if method.of_users and not manager.name:
        text = f"{method.name} is for users: log in with a name (with the command: --host and --username)"
        raise RequestError(grpc.StatusCode.PERMISSION_DENIED, text)
    for right in method.rights:
        if not (right.each or right.or_owner):
            is_prefix = is_about_all(right) and right.kind != TOPIC
            await require_one(manager, right.action, right.kind, resource_of(right, request), is_prefix)


async def require_one(manager: Manager, action: Action, kind: Kind, name: str, is_prefix: bool = False) -> None:
    """Raise `RequestError` unless the caller may do this to a resource. Raises `StoreError`."""
    if not await manager.may(action, kind, name, is_prefix):
        what = f"{Action.Name(action)} {Kind.Name(kind).lower()}:{name}{'*' if is_prefix else ''}"
        raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"this needs the right to {what}, and no rule allows it")
