"""Carries out the calls of the management surface, whichever face they came through: checks rights, bounds number and
time, and leaves a line in the log for what changes something or is refused."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

import grpc
from google.protobuf.message import Message

from gateway.auth.audit import ADMINISTRATION, AUTHORIZATION, AuditLog, Event
from gateway.auth.rules.sources import host_of
from gateway.management.methods import Method
from gateway.management.proto.options_pb2 import TOPIC
from gateway.management.rights import Manager, NodeUser, require, resource_of
from gateway.observe.service_clients import CLIENT, ServiceClients
from gateway.observe.throttled_log import ThrottledLog
from gateway.rpc.status import RequestError, status_of
from matcher.reserved import AUDIT, is_below
from store.errors import StoreError

log = logging.getLogger(__name__)

_MAX_CALLS: Final = 32  # at a time, of either kind; the administration socket has connections for fewer
_MAX_OF_USER: Final = 16  # of one user, so that others have room
_SECONDS: Final = 60.0  # for a call
_LONG_SECONDS: Final = 600.0  # for one that may take minutes
_SHOWN: Final = 200  # characters of a resource in the log
_MAX_TEXT: Final = 1000  # characters of a refusal, which may name what the request named
_NAMES: Final = (
    "name",
    "user",
    "node",
    "target",
    "actions",
    "resource",
    "number",
    "topic_filter",
)  # fields that say what a call about an area of the cluster changes
_NOT_LEADING: Final = "this node does not lead its cluster: `sluice cluster status` says which one does"


PassOn = Callable[[Method, Message, Manager], Awaitable[Message]]  # raises `RequestError`


class Management:
    """The implementations of the methods, by service. Each is an object with a coroutine for each method: (request,
    caller) → reply. It raises `RequestError` and `StoreError`."""

    def __init__(
        self,
        audit: Callable[[], AuditLog | None] = lambda: None,
        pass_on: PassOn | None = None,
        clients: ServiceClients | None = None,
    ) -> None:
        """audit: the audit log, if there is one now. pass_on: has another process carry out a call of a service that
        is not served here, check its rights and leave its line; None: there is no other. clients: where applications
        that publish or consume are noted."""
        self._clients = clients or ServiceClients()
        self._audit = audit
        self._pass_on = pass_on
        self._areas: dict[str, object] = {}
        # Calls under way, by user; those for messages of applications apart, which may wait for messages.
        self._calls: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._throttled_log = ThrottledLog(log)

    def serve(self, areas: Mapping[str, object]) -> None:
        """Serve these services from now on, beside those that are served."""
        self._areas |= areas

    def end(self, areas: Mapping[str, object]) -> None:
        """Serve these services no more: this node does not lead."""
        for service, area in areas.items():
            if self._areas.get(service) is area:
                del self._areas[service]

    async def call(self, method: Method, request: Message, manager: Manager, *, may_pass_on: bool = True) -> Message:
        """Carry out a call. Raises `RequestError`."""
        is_counted = not isinstance(manager, NodeUser)  # a person at the machine is served, whatever others do
        pass_on = self._pass_on if may_pass_on and method.service not in self._areas else None
        if is_counted:
            self._admit(self._calls[method.is_traffic], manager.name)
        seconds = _LONG_SECONDS if method.takes_long else _SECONDS
        try:
            async with asyncio.timeout(seconds):
                if pass_on is not None:
                    return await pass_on(method, request, manager)
                reply = await self._carry_out(method, request, manager)
        except RequestError as error:
            if pass_on is not None:
                raise
            if error.code is grpc.StatusCode.PERMISSION_DENIED:
                self._note(method, request, manager, str(error))
            self._log_refusal(method, request, manager, error)
            raise RequestError(error.code, str(error)[:_MAX_TEXT]) from error
        except StoreError as error:
            raise RequestError(status_of(error), str(error)) from error
        except TimeoutError as error:
            text = f"the call took longer than {seconds:g} s; what it began may still happen"
            raise RequestError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from error
        finally:
            if is_counted:
                calls = self._calls[method.is_traffic]
                calls[manager.name] -= 1
                if not calls[manager.name]:
                    del calls[manager.name]
        if method.is_traffic:
            self._note(method, request, manager)
        elif method.changes:
            ids = {"user": manager.name, "source": manager.source, "request": manager.request}
            log.info("management: %s for %r from %s", _what(method, request), _who(manager), manager.source, extra=ids)
            self._note(method, request, manager)
        return reply

    def _note(self, method: Method, request: Message, manager: Manager, refusal: str = "") -> None:
        """Note a call in the audit log: one that changed something, or was refused, or some of those that publish and
        receive messages."""
        audit = self._audit()
        if audit is None or not audit.is_on:
            return
        is_sample = method.is_traffic and not refusal
        if is_sample and (_reads_events(method, request) or not (audit.sample and audit.is_sampled())):
            return
        event = Event(
            AUTHORIZATION if is_sample else ADMINISTRATION,
            not refusal,
            f"{method.service}.{method.name}",
            _what(method, request).removeprefix(method.name).strip(),
            manager.name,
            source=host_of(manager.source) or manager.source,
            why=refusal,
            request=manager.request,
            sample=audit.sample if is_sample else 0,
        )
        audit.note(event)

    def _admit(self, calls: Counter[str], user: str) -> None:
        """Count a call. Raises `RequestError`."""
        if calls[user] >= _MAX_OF_USER or calls.total() >= _MAX_CALLS:
            text = f"{_MAX_CALLS} calls of the management surface are under way, or {_MAX_OF_USER} of this user"
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{text}: repeat this one later")
        calls[user] += 1

    async def _carry_out(self, method: Method, request: Message, manager: Manager) -> Message:
        area: Any = self._areas.get(method.service)
        if area is None:
            raise RequestError(grpc.StatusCode.UNAVAILABLE, _NOT_LEADING)
        await require(manager, method, request)
        if method.is_traffic and CLIENT.get() is None:  # over HTTP, or passed on by another process
            return await self._serve_application(area, method, request, manager)
        return cast("Message", await getattr(area, method.coroutine)(request, manager))

    async def _serve_application(self, area: Any, method: Method, request: Message, manager: Manager) -> Message:
        """Carry out a call of an application, which is noted with the other services."""
        client = self._clients.of_request(host_of(manager.source) or manager.source, manager.name)
        client.called(method.name)
        before = CLIENT.set(client)
        try:
            return cast("Message", await getattr(area, method.coroutine)(request, manager))
        finally:
            CLIENT.reset(before)
            client.call_ended()

    def _log_refusal(self, method: Method, request: Message, manager: Manager, error: RequestError) -> None:
        if error.code is grpc.StatusCode.PERMISSION_DENIED:
            who = f"{_who(manager)!r} from {manager.source}"
            self._throttled_log.warning("denied", f"management: {_what(method, request)} is denied to {who}")


def _reads_events(method: Method, request: Message) -> bool:
    """Whether a call is about the events of the audit log. It would make more of them."""
    named = [right for right in method.rights if right.kind == TOPIC and right.field]
    return any(is_below(resource_of(right, request).encode(), AUDIT) for right in named)


def _what(method: Method, request: Message) -> str:
    """What a call is about. The request is not there as a whole: it may have a secret."""
    named = [right for right in method.rights if right.field or right.name]
    resources = [resource_of(right, request)[:_SHOWN] for right in named]
    names = [str(getattr(request, name))[:_SHOWN] for name in _NAMES if name in request.DESCRIPTOR.fields_by_name]
    return " ".join([method.name, *map(repr, dict.fromkeys(resources + names))])


def _who(manager: Manager) -> str:
    return manager.name[:_SHOWN]
