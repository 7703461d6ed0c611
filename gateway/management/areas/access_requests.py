"""Requests for access: users ask for rules, and owners of topics and groups decide."""

import asyncio
from time import time
from typing import Final

import grpc

from gateway.auth.rules.permissions import CLIENT_ID, USER_NAME
from gateway.auth.rules.rule_text import ACTIONS_OF, RuleError, parse_wanted, rule_text
from gateway.broker.append import append
from gateway.management.areas.access import AccessService
from gateway.management.paging import AT_ONCE, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import CLUSTER, DELETE, GET, GROUP, LIST, PUB, SUB, TOPIC, UPDATE, Action
from gateway.management.rights import Manager, action_bit
from gateway.rpc.status import RequestError, invalid
from store import control
from store.api import AccessRequest, Outcome, Resource, Rule, Store

MAX_OPEN: Final = 1000  # requests of all users
MAX_OPEN_OF_USER: Final = 16
LIFE_MS: Final = 30 * 86_400_000  # of a request on which nobody decides
_MAX_TEXT: Final = 1024  # bytes of a reason
_MAX_NAME: Final = 4096  # bytes of a resource that is asked for
_END: Final = (1 << 63) - 1
_KINDS: Final = {int(Resource.TOPIC): TOPIC, int(Resource.GROUP): GROUP}


class AccessRequestsService:
    """Implements the service `AccessRequests`."""

    def __init__(self, store: Store, access: AccessService) -> None:
        self._store = store
        self._access = access
        self._asking = asyncio.Lock()  # the number of requests stays as it is between a check and its record

    async def request_access(self, request: pb.RequestAccessRequest, manager: Manager) -> pb.AccessRequest:
        user, reason = manager.name.encode(), _text(request.reason)
        rule = _rule(request)
        async with self._asking:
            waiting = await self._store.open_access_requests()
            own = [each for each in waiting if each.user == user]
            for asked in own:
                if asked.rule == rule:
                    return await self._shown(asked, manager)
            if len(own) >= MAX_OPEN_OF_USER or len(waiting) >= MAX_OPEN:
                text = (
                    f"a user has at most {MAX_OPEN_OF_USER} open requests, and all users {MAX_OPEN}: wait for decisions"
                )
                raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            until_ms = _now_ms() + LIFE_MS
            (number,) = await append(self._store, [control.AccessRequested(rule, until_ms, reason).frame(user)])
            return await self._shown(await self._open(number), manager)

    async def list_access_requests(
        self, request: pb.ListAccessRequestsRequest, manager: Manager
    ) -> pb.ListAccessRequestsReply:
        limit = page_size(request.limit)
        sees_all = await manager.may(LIST, CLUSTER, "access")
        reply = pb.ListAccessRequestsReply()
        after = _number(request.after) if request.HasField("after") else None
        while True:
            rows = await self._rows(request, after)
            for number, asked in enumerate(rows):
                if len(reply.requests) == limit:
                    reply.after = str(after)
                    return reply
                after = asked.decision if request.decided else asked.number
                is_wanted = request.user in ("", asked.user.decode())
                if is_wanted and (sees_all or await self._may_see(asked, manager)):
                    reply.requests.append(await self._shown(asked, manager))
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)
            if not rows or not request.decided:
                return reply

    async def _rows(self, request: pb.ListAccessRequestsRequest, after: int | None) -> list[AccessRequest]:
        """The requests behind a place: all that are open, or some that were decided."""
        if request.decided:
            return await self._store.decided_access_requests(_END if after is None else after, AT_ONCE)
        found = await self._store.open_access_requests(request.user.encode() or None)
        now = _now_ms()
        return [each for each in found if each.until_ms > now and (after is None or each.number > after)]

    async def approve_access_request(
        self, request: pb.ApproveAccessRequestRequest, manager: Manager
    ) -> pb.AccessRequest:
        return await self._decide(request.number, Outcome.APPROVED, request.why, manager)

    async def decline_access_request(
        self, request: pb.DeclineAccessRequestRequest, manager: Manager
    ) -> pb.AccessRequest:
        return await self._decide(request.number, Outcome.DECLINED, request.why, manager)

    async def _decide(self, number: int, outcome: Outcome, why: str, manager: Manager) -> pb.AccessRequest:
        text = _text(why)
        async with self._access.changing:  # the rules stay as they are between a look and their record
            asked = await self._open(number)
            await self._require_may_decide(asked, manager)
            frames = await self._frames_with(asked) if outcome is Outcome.APPROVED else []
            record = control.AccessDecided(number, int(outcome), manager.name.encode(), text)
            await append(self._store, [*frames, record.frame(asked.user)])
            for decided in await self._store.decided_access_requests(_END, AT_ONCE):
                if decided.number == number:
                    return await self._shown(decided, manager)
        raise RequestError(grpc.StatusCode.ABORTED, "the user was removed meanwhile")

    async def _frames_with(self, asked: AccessRequest) -> list[bytes]:
        """The record that gives a user what it asks for. It comes first: an earlier rule that denies it would make the
        decision an empty one."""
        rules = await self._store.rules(asked.user)
        wanted = [asked.rule, *(rule for rule in rules if rule != asked.rule)]
        return self._access.rules_frames(asked.user, rules, wanted)

    async def _open(self, number: int) -> AccessRequest:
        """The request of a number. Raises `RequestError` if it is not open."""
        asked = await self._store.access_request(number) if number > 0 else None
        if asked is None or asked.until_ms <= _now_ms():
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no open request {number}")
        return asked

    async def _require_may_decide(self, asked: AccessRequest, manager: Manager) -> None:
        """Raise `RequestError` unless the caller may decide. Who may not even know of the request learns nothing."""
        if await self._may_decide(asked, manager):
            return
        if manager.name.encode() == asked.user:
            text = "nobody decides about his own request"
        else:
            text = "this needs the right to UPDATE cluster:access, or to own what is asked for, and no rule allows it"
        raise RequestError(grpc.StatusCode.PERMISSION_DENIED, text)

    async def _may_decide(self, asked: AccessRequest, manager: Manager) -> bool:
        if manager.name and manager.name.encode() == asked.user:
            return False
        return await manager.may(UPDATE, CLUSTER, "access") or await self._owns(asked.rule, manager)

    async def _may_see(self, asked: AccessRequest, manager: Manager) -> bool:
        """Whether it is the caller's own request, or the caller may decide about such a one."""
        if manager.name and manager.name.encode() == asked.user:
            return True
        return await self._may_decide(asked, manager)

    async def _owns(self, rule: Rule, manager: Manager) -> bool:
        """Whether the caller owns what the rule is about, and may do all that it allows. Raises `StoreError`."""
        kind, name = _KINDS[rule.kind], rule.name.decode()
        if not manager.name or (kind == TOPIC and rule.is_prefix):  # no filter stands for such topics
            return False
        if CLIENT_ID in rule.name or USER_NAME in rule.name:  # it will stand for names that nobody knows now
            return False
        wanted = [UPDATE, *_actions(rule)]
        if kind == GROUP and not rule.is_prefix and await self._store.group_creator(rule.name) == manager.name.encode():
            return not any([await manager.is_denied(action, kind, name) for action in wanted])
        return all([await manager.may(action, kind, name, rule.is_prefix) for action in wanted])

    async def _shown(self, asked: AccessRequest, manager: Manager) -> pb.AccessRequest:
        is_open = asked.outcome is Outcome.OPEN
        return pb.AccessRequest(
            number=asked.number,
            user=asked.user.decode(),
            rule=rule_text(asked.rule),
            reason=asked.reason.decode(),
            since_ms=asked.since_ms,
            until_ms=asked.until_ms,
            state=asked.outcome.name.lower(),
            decided_ms=asked.decided_ms,
            by=asked.by.decode(),
            why=asked.why.decode(),
            may_decide=is_open and await self._may_decide(asked, manager),
        )


def _rule(request: pb.RequestAccessRequest) -> Rule:
    """The rule that is asked for. Raises `RequestError`."""
    if len(request.resource.encode()) > _MAX_NAME:
        raise invalid(f"what is asked for has at most {_MAX_NAME} bytes")
    try:
        return parse_wanted(request.actions, request.resource)
    except RuleError as error:
        raise invalid(str(error)) from error


def _actions(rule: Rule) -> list[Action]:
    """The actions that a rule allows on its kind of resource."""
    actions = rule.actions & ACTIONS_OF[Resource(rule.kind)]
    return [each for each in (PUB, SUB, UPDATE, DELETE, LIST, GET) if action_bit(each) & actions]


def _text(text: str) -> bytes:
    """Check and encode a reason. Raises `RequestError`."""
    found = text.encode()
    if len(found) > _MAX_TEXT:
        raise invalid(f"a reason has at most {_MAX_TEXT} bytes")
    return found


def _number(text: str) -> int:
    """Where the last page ended. Raises `RequestError`."""
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise invalid(f"{text[:40]!r} is not where a page ended")
    return int(text)


def _now_ms() -> int:
    return int(time() * 1000)
