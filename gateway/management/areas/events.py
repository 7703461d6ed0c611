"""Event rules: set, tested, paused and removed; and events that are published."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.json_format import MessageToDict, ParseDict

from gateway.auth.authority import Authority, UserDisabled
from gateway.broker.append import append
from gateway.eventing.enrichment import Enrichment
from gateway.eventing.event_rules import EventRules
from gateway.eventing.event_search import EventQuery, EventSearch, Place
from gateway.eventing.secrets import no_secret
from gateway.events.compiled_rule import CompiledRule
from gateway.events.definition import Definition, definition_of, has_past, parse_definition
from gateway.events.errors import EvaluationFailed, InvalidEvent, InvalidRule
from gateway.events.event import SPEC_VERSION, Event, message_block, read_structured
from gateway.events.json_values import Json, read_json, write_json
from gateway.events.requests import webhook_request
from gateway.management.areas.published_events import PublishedEvents
from gateway.management.paging import AT_ONCE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import PUB, SUB, TOPIC
from gateway.management.rights import Manager, NodeUser, require_one
from gateway.rpc.access.visibility import topic_of
from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import RequestError, invalid
from gateway.schemas.payload_checks import PayloadChecks
from matcher.names import has_wildcard, is_valid_filter, is_valid_topic, matches
from store import control
from store.api import MAX_EVENT_RULES, EventRule, dead_letter_queue
from store.engine import Engine
from store.errors import NoSuchMessage

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_DEFINITION: Final = 256 << 10  # bytes
_MASK: Final = "***"  # in place of the value of a header, which may be a credential
_QOS: Final = 1  # of published events
_SIGNATURE: Final = "webhook-signature"


class EventsService:
    """Implements the service `Events`."""

    def __init__(
        self,
        engine: Engine,
        rules: EventRules,
        authority: Authority,
        limits: RpcLimits,
        payload_checks: PayloadChecks | None = None,
    ) -> None:
        """payload_checks: see `MessageCheck`."""
        self._store = engine
        self._rules = rules
        self._authority = authority
        self._published = PublishedEvents(engine, limits, payload_checks)
        self._search = EventSearch(engine)
        self._changing = asyncio.Lock()  # the number of rules stays as it is between a check and its record

    # --- rules

    async def list_event_rules(self, request: pb.ListEventRulesRequest, _manager: Manager) -> pb.ListEventRulesReply:
        limit = page_size(request.limit)
        reply = pb.ListEventRulesReply()
        rules = await self._store.event_rules(after_of(request), limit)
        for number, rule in enumerate(rules, 1):
            reply.rules.append(await self._shown(rule))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if len(rules) == limit:
            reply.after = rules[-1].name.decode()
        return reply

    async def get_event_rule(self, request: pb.GetEventRuleRequest, _manager: Manager) -> pb.EventRule:
        return await self._shown(await self._rule(request.name))

    async def set_event_rule(self, request: pb.SetEventRuleRequest, manager: Manager) -> pb.EventRule:
        name = _name(request.name)
        async with self._changing:
            known = await self._store.event_rule(name)
            if known is None and await self._store.event_rule_count() >= MAX_EVENT_RULES:
                text = f"there are {MAX_EVENT_RULES} event rules, which is the limit"
                raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            definition = _unmasked(_definition(request.definition), known)
            compiled = _compiled(definition)
            await self._require_rights(compiled, manager)
            await self._require_possible(definition, manager)
            stored = msgspec.json.encode(definition)
            if len(stored) > _MAX_DEFINITION:
                raise invalid(f"a definition has at most {_MAX_DEFINITION} bytes")
            start = request.WhichOneof("start")
            is_same = known is not None and known.filters == compiled.filters and start is None
            reads_parents = known.reads_parents if is_same and known is not None else False
            if start in ("earliest", "time_ms"):
                reads_parents = any(map(has_wildcard, compiled.filters))
            by = manager.name.encode()
            rule = EventRule(name, compiled.filters, reads_parents, stored, by, 0)
            begins = await self._begins(rule, request) if start in ("earliest", "time_ms") else {}
            restarts = known is not None and not is_same
            fields = compiled.filters, reads_parents, stored, by, begins, restarts
            frames = [control.EventRuleSet(*fields).frame(name)]
            if request.HasField("enabled"):
                pause = control.GroupResumed() if request.enabled else control.GroupPaused(by)
                frames.append(pause.frame(rule.group))
            elif restarts and await self._store.group_pause(rule.group) is not None:
                frames.append(control.GroupPaused(by).frame(rule.group))  # a group that begins again is not paused
            await append(self._store, frames)
        return await self._shown(await self._rule(request.name))

    async def delete_event_rule(self, request: pb.DeleteEventRuleRequest, _manager: Manager) -> pb.DeleteEventRuleReply:
        async with self._changing:
            rule = await self._rule(request.name)
            await append(self._store, [control.EventRuleRemoved().frame(rule.name)])
        return pb.DeleteEventRuleReply()

    async def pause_event_rule(self, request: pb.PauseEventRuleRequest, manager: Manager) -> pb.EventRule:
        rule = await self._rule(request.name)
        await append(self._store, [control.GroupPaused(manager.name.encode()).frame(rule.group)])
        return await self._shown(rule)

    async def resume_event_rule(self, request: pb.ResumeEventRuleRequest, _manager: Manager) -> pb.EventRule:
        rule = await self._rule(request.name)
        await append(self._store, [control.GroupResumed().frame(rule.group)])
        return await self._shown(rule)

    async def test_event_rule(self, request: pb.TestEventRuleRequest, manager: Manager) -> pb.TestEventRuleReply:
        if request.HasField("definition"):
            definition = _definition(request.definition)
        else:
            definition = _stored(await self._rule(request.name))
        compiled = _compiled(definition)
        event = await self._event(request, compiled, manager)
        reply = pb.TestEventRuleReply(event=write_json(event.structured()).decode())
        for lookup in compiled.lookups:
            topic = lookup.topic(event)
            if topic is not None:
                await require_one(manager, SUB, TOPIC, topic.decode())
            reply.lookups.add(name=lookup.name, topic="" if topic is None else topic.decode())
        try:
            if compiled.lookups:
                await Enrichment(self._store, compiled, lambda _: True, int(time.time() * 1000)).enrich(event)
                values = event.field("enriched")
                for each in reply.lookups:
                    each.value = write_json(values[each.name]).decode() if each.name in values else ""
            _explain(request.name, compiled, event, reply)
        except EvaluationFailed as error:
            reply.error = str(error)
        return reply

    async def _event(self, request: pb.TestEventRuleRequest, compiled: CompiledRule, manager: Manager) -> Event:
        """The event that a test is about. Raises `RequestError` and `StoreError`."""
        if request.WhichOneof("event") == "position":
            if request.position < 0:
                raise NoSuchMessage(request.position)
            frame = await self._store.message(request.position)
            await require_one(manager, SUB, TOPIC, topic_of(frame).decode())
            return Event.of_frame(frame, 0)
        if request.WhichOneof("event") is None:
            raise invalid("a test has an event, as json, or the position of a message")
        try:
            fields = _read(request.json)
            given = {"specversion": SPEC_VERSION, "id": "test", "source": "/test", "type": "test"}
            attributes, data = read_structured({**given, **fields} if isinstance(fields, dict) else fields)
            exact = [each.decode() for each in compiled.filters if not has_wildcard(each)]
            topic = request.topic or attributes.get("subject") or (exact[0] if exact else "")
            if not is_valid_topic(topic.encode()):
                raise invalid(f"the event needs a topic: {topic[:100]!r} is none; say which, or name it as its subject")
            block = message_block(attributes, topic.encode())
            return Event(topic.encode(), data, block, stored_ms=int(time.time() * 1000))
        except (InvalidEvent, ValueError) as error:
            raise invalid(str(error)) from error

    async def _rule(self, name: str) -> EventRule:
        rule = await self._store.event_rule(_name(name))
        if rule is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no event rule {name!r}")
        return rule

    async def _begins(self, rule: EventRule, request: pb.SetEventRuleRequest) -> dict[bytes, int]:
        """The offsets at which a rule begins in the past, by queue. Raises `RequestError`."""
        for each in rule.filters:
            if not has_past(each):
                text = "of a filter that begins with a wildcard, there is no past: it has no parent topic"
                raise invalid(f"{each.decode()!r}: {text}")
        begins: dict[bytes, int] = {}
        for queue in rule.queues(self._store.partition_count):
            if request.earliest:
                begins[queue] = (await self._store.bounds(queue)).begin
            else:
                begins[queue] = await self._store.offset_at(queue, request.time_ms)
        return begins

    async def _require_rights(self, compiled: CompiledRule, manager: Manager) -> None:
        """Raise `RequestError` unless the caller may do what the rule does, and could do so as the rule. Raises
        `StoreError`."""
        if isinstance(manager, NodeUser):
            return
        if not manager.name:
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, "a rule has the rights of its user: log in as one")
        read = compiled.reads
        for each in read:
            await require_one(manager, SUB, TOPIC, each.decode())
        topic = compiled.fixed_topic
        if topic:
            await require_one(manager, PUB, TOPIC, topic.decode())
        try:
            permissions = await self._authority.permissions_of(manager.name.encode())
        except UserDisabled as error:
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, str(error)) from error
        may = permissions is None or (
            all(map(permissions.may_subscribe, read)) and (not topic or permissions.may_publish(topic))
        )
        if not may:
            text = "a rule runs by the rules of its user in the store: roles that come with a login do not count"
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, text)

    async def _require_possible(self, definition: Definition, manager: Manager) -> None:
        """Raise `RequestError` for a webhook that could never be sent. Raises `StoreError`."""
        webhook = definition.webhook
        if webhook is None:
            return
        refused = self._rules.client.refusal_of(webhook.url)
        if refused:
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, f"the target cannot be reached: {refused}")
        user = b"" if isinstance(manager, NodeUser) else manager.name.encode()
        roles = await self._authority.roles_of(user) if user else None
        if webhook.secret and self._rules.secrets.find(webhook.secret, user, roles) is None:
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, no_secret(webhook.secret, user))

    async def _shown(self, rule: EventRule) -> pb.EventRule:
        reply = pb.EventRule(name=rule.name.decode(), by=rule.by.decode(), set_ms=rule.set_ms)
        reply.definition.CopyFrom(_wire_definition(_stored(rule)))
        progress = await self._store.group_progress(rule.group)
        if progress is not None:
            reply.lag, reply.unfinished = progress.lag, progress.unfinished
        letters = await self._store.bounds(dead_letter_queue(rule.group))
        reply.dead_letters = progress.dead_letters if progress is not None else letters.end - letters.begin
        reply.enabled = await self._store.group_pause(rule.group) is None
        runner = self._rules.find(rule.name)
        if runner is not None:
            reply.trouble = runner.trouble
            figures = runner.figures
            reply.figures.CopyFrom(
                pb.EventRuleFigures(
                    matched=figures.matched,
                    unmatched=figures.unmatched,
                    delivered=figures.delivered,
                    failed=figures.failed,
                    refused=figures.refused,
                    error=figures.error,
                    error_ms=figures.error_ms,
                )
            )
        return reply

    # --- events

    async def publish_events(self, request: pb.PublishEventsRequest, manager: Manager) -> pb.PublishEventsReply:
        return await self._published.publish(request, manager)

    async def find_events(self, request: pb.FindEventsRequest, manager: Manager) -> pb.FindEventsReply:
        topic_filter = request.topic.encode()
        if not is_valid_filter(topic_filter) or not has_past(topic_filter):
            raise invalid(f"{request.topic[:100]!r} is not a topic filter whose first level has a name")
        await require_one(manager, SUB, TOPIC, request.topic)
        query = EventQuery(topic_filter, request.id, request.source, request.type, request.since_ms, request.until_ms)
        after = _place(request.after) if request.HasField("after") else None
        found = await self._search.page(query, after, page_size(request.limit))
        reply = pb.FindEventsReply()
        for number, event in enumerate(found.events, 1):
            text = write_json(event.structured()).decode()
            reply.events.add(position=event.position, time_ms=event.stored_ms, topic=event.topic.decode(), event=text)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if found.after is not None:
            reply.after = f"{found.after.time_ms}.{found.after.position}"
        return reply


def _name(text: str) -> bytes:
    if _NAME.fullmatch(text) is None:
        raise invalid(f"{text[:100]!r} is not the name of a rule: letters, digits, dots, dashes and underscores")
    return text.encode()


def _definition(wire: pb.EventRuleDefinition) -> Definition:
    """A definition of a request. Raises `RequestError`."""
    try:
        return definition_of(MessageToDict(wire, preserving_proto_field_name=True))
    except InvalidRule as error:
        raise invalid(str(error)) from error


def _stored(rule: EventRule) -> Definition:
    """The definition of a rule. Raises `RequestError` if another version wrote what this one cannot read."""
    try:
        return parse_definition(rule.definition)
    except InvalidRule as error:
        raise RequestError(grpc.StatusCode.DATA_LOSS, f"rule {rule.name.decode()!r}: {error}") from error


def _compiled(definition: Definition) -> CompiledRule:
    try:
        return CompiledRule(definition)
    except InvalidRule as error:
        raise invalid(str(error)) from error


def _explain(name: str, compiled: CompiledRule, event: Event, reply: pb.TestEventRuleReply) -> None:
    """Show step by step what a rule makes of an event. Raises `EvaluationFailed`."""
    reply.topic_matches = any(matches(each, event.topic) for each in compiled.filters)
    for step in compiled.explain(event):
        reply.steps.add(path=step.path, condition=step.condition, value=step.value, holds=step.holds)
    reply.matches = reply.topic_matches and compiled.matches(event)
    if not reply.matches:
        return
    output = compiled.output(event)
    reply.data = output.data.decode(errors="replace")
    reply.content_type = output.content_type or ""
    webhook = compiled.definition.webhook
    if webhook is None:
        reply.topic = compiled.topic(event).decode()
        return
    sent = webhook_request(name, webhook, [(event, output)], b"", 0)
    reply.request.url, reply.request.body = sent.url, sent.body.decode(errors="replace")
    reply.request.headers.update({**sent.headers, **dict.fromkeys(webhook.headers, _MASK)})
    if webhook.secret:  # nobody gets signatures without sending something
        reply.request.headers[_SIGNATURE] = "v1,…"


def _wire_definition(definition: Definition) -> pb.EventRuleDefinition:
    """A definition for replies, without the values of headers."""
    fields: dict[str, Any] = msgspec.to_builtins(definition)
    if definition.webhook is not None and definition.webhook.headers:
        fields["webhook"]["headers"] = dict.fromkeys(definition.webhook.headers, _MASK)
    return ParseDict(fields, pb.EventRuleDefinition())


def _unmasked(definition: Definition, known: EventRule | None) -> Definition:
    """A definition whose masked headers have the values that they had. Raises `RequestError`."""
    webhook = definition.webhook
    if webhook is None or _MASK not in webhook.headers.values():
        return definition
    before: Mapping[str, str] = {}
    if known is not None:
        stored = _stored(known).webhook
        if stored is not None and stored.url == webhook.url:
            before = stored.headers
    headers = {name: before.get(name, _MASK) if value == _MASK else value for name, value in webhook.headers.items()}
    if _MASK in headers.values():
        raise invalid(f"the value of a header is {_MASK}, which stands for one that the rule has for the same URL")
    return msgspec.structs.replace(definition, webhook=msgspec.structs.replace(webhook, headers=headers))


def _read(text: str) -> Json:
    """Read JSON of a request. Raises `RequestError`."""
    try:
        return read_json(text.encode())
    except ValueError as error:
        raise invalid(f"the event is not JSON: {error}") from error


def _place(text: str) -> Place:
    """Where a page of events ended. Raises `RequestError`."""
    time_ms, _, position = text.partition(".")
    if not (time_ms.isdigit() and position.isdigit() and text.isascii() and len(text) < 40):
        raise invalid(f"after is not that of a page: {text[:40]!r}")
    return Place(int(time_ms), int(position))
