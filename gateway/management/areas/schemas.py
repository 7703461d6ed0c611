"""Schemas of payloads: registered, compared, bound to topic filters, and tried on stored messages."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, get_args

import record
from gateway.management.paging import AT_ONCE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.registry.compiling import inferred
from gateway.registry.registry import SchemaRegistry, parsed
from gateway.rpc.status import invalid
from gateway.schemas.entries import Binding, Mode, Subject, Version
from gateway.schemas.errors import InvalidPayload
from gateway.schemas.kinds import LEVELS, Level
from gateway.schemas.payload_checks import SubjectCheck
from matcher.names import has_wildcard, is_shared, is_valid_filter, levels, matches, parent_of
from record.layout import FLAG_HELD
from store.api import Store, partition_queue, topic_queue

_PAGE_BYTES: Final = 1 << 20  # of the records of a queue that are looked at
_MODES: Final[tuple[Mode, ...]] = get_args(Mode)


class SchemasService:
    """Implements the service `Schemas`."""

    def __init__(self, store: Store, registry: SchemaRegistry, refresh: Callable[[], Awaitable[None]]) -> None:
        """refresh: has this process check payloads by what has changed."""
        self._store = store
        self._registry = registry
        self._refresh = refresh

    async def list_subjects(self, request: pb.ListSubjectsRequest, _manager: Manager) -> pb.ListSubjectsReply:
        limit = page_size(request.limit)
        after = after_of(request)
        found = await self._registry.subjects(None if after is None else after.decode(), limit)
        level = await self._registry.default_level()
        reply = pb.ListSubjectsReply(compatibility=level)
        reply.subjects.extend(_subject(name, subject, level) for name, subject in found)
        if len(found) == limit:
            reply.after = found[-1][0]
        return reply

    async def get_subject(self, request: pb.GetSubjectRequest, _manager: Manager) -> pb.Subject:
        subject = await self._registry.subject(request.name)
        return _subject(request.name, subject, await self._registry.default_level())

    async def get_schema(self, request: pb.GetSchemaRequest, _manager: Manager) -> pb.Schema:
        found = await self._registry.schema(request.id)
        return pb.Schema(id=request.id, kind=found.kind, text=found.text)

    async def register_schema(self, request: pb.RegisterSchemaRequest, manager: Manager) -> pb.SchemaVersion:
        version = await self._registry.register(request.name, request.kind, request.text, manager.name)
        await self._refresh()
        return _version(version)

    async def check_schema(self, request: pb.CheckSchemaRequest, _manager: Manager) -> pb.CheckSchemaReply:
        if request.version:
            problems = await self._registry.problems(request.name, request.kind, request.text, request.version)
            return pb.CheckSchemaReply(compatible=not problems, problems=problems)
        candidate = await self._registry.candidate(request.name, request.kind, request.text)
        reply = pb.CheckSchemaReply(compatible=not candidate.problems, problems=candidate.problems)
        if candidate.known is not None:
            reply.known.CopyFrom(_version(candidate.known))
        return reply

    async def delete_subject(self, request: pb.DeleteSubjectRequest, _manager: Manager) -> pb.DeleteSubjectReply:
        versions = await self._registry.delete(request.name, request.version)
        await self._refresh()
        return pb.DeleteSubjectReply(versions=versions)

    async def set_compatibility(
        self, request: pb.SetCompatibilityRequest, _manager: Manager
    ) -> pb.SetCompatibilityReply:
        level = _level(request.compatibility) if request.compatibility else None
        await self._registry.set_level(request.name, level)
        return pb.SetCompatibilityReply(compatibility=level or await self._registry.default_level())

    async def list_bindings(self, _request: pb.ListBindingsRequest, _manager: Manager) -> pb.ListBindingsReply:
        return pb.ListBindingsReply(bindings=map(_binding, await self._registry.bindings()))

    async def set_binding(self, request: pb.SetBindingRequest, manager: Manager) -> pb.SchemaBinding:
        mode = next((each for each in _MODES if each == request.mode), None)
        if mode is None:
            raise invalid(f"the mode is refuse, mark or quarantine, and not {request.mode[:40]!r}")
        topic_filter, name = request.topic_filter, request.name
        by, now_ms = manager.name, int(time.time() * 1000)
        binding = Binding(topic_filter, name, mode, request.version, request.quarantine, by, now_ms)
        await self._registry.bind(binding)
        await self._refresh()
        return _binding(binding)

    async def delete_binding(self, request: pb.DeleteBindingRequest, _manager: Manager) -> pb.DeleteBindingReply:
        await self._registry.unbind(request.topic_filter)
        await self._refresh()
        return pb.DeleteBindingReply()

    async def check_payload(self, request: pb.CheckPayloadRequest, _manager: Manager) -> pb.CheckPayloadReply:
        check = await self._subject_check(request.name, request.version)
        try:
            check.check(request.payload)
        except InvalidPayload as error:
            return pb.CheckPayloadReply(fault=str(error))
        return pb.CheckPayloadReply()

    async def infer_schema(self, request: pb.InferSchemaRequest, _manager: Manager) -> pb.InferSchemaReply:
        messages = await self._newest(request.topic_filter, page_size(request.limit))
        try:
            text, count = await inferred([payload for _, _, payload in messages])
        except InvalidPayload as error:
            raise invalid(f"the newest {len(messages)} messages have no schema: {error}") from error
        return pb.InferSchemaReply(text=text, messages=count)

    async def preview_schema(self, request: pb.PreviewSchemaRequest, _manager: Manager) -> pb.PreviewSchemaReply:
        if bool(request.name) == bool(request.text):
            raise invalid("a preview is of a subject, or of a kind and a text")
        if request.name:
            check = await self._subject_check(request.name, 0)
        else:
            check = SubjectCheck("", await parsed(request.kind, request.text), {})
        messages = await self._newest(request.topic_filter, page_size(request.limit))
        reply = pb.PreviewSchemaReply(messages=len(messages))
        for number, (position, topic, payload) in enumerate(messages, 1):
            try:
                check.check(payload)
            except InvalidPayload as error:
                reply.faults.add(position=position, topic=topic.decode(), fault=str(error))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return reply

    async def _subject_check(self, name: str, number: int) -> SubjectCheck:
        """Raises `RequestError` and `StoreError`."""
        chosen = await self._registry.version(name, number)
        versions = (await self._registry.subject(name)).current
        by_id = {each.id: await self._registry.compiled(each.id) for each in versions}
        return SubjectCheck(name, await self._registry.compiled(chosen.id), by_id)

    async def _newest(self, text: str, limit: int) -> list[tuple[int, bytes, bytes]]:
        """The newest messages of a topic filter, the oldest of them first: position, topic and payload.

        With wildcards, those that are among the newest of the partitions. Raises `RequestError` and `StoreError`.
        """
        topic_filter = text.encode()
        if not is_valid_filter(topic_filter) or is_shared(topic_filter):
            raise invalid(f"{text[:100]!r} is not a topic filter")
        if levels(topic_filter)[0] in (b"+", b"#"):
            raise invalid("the first level of the topic filter is not a wildcard: messages are read by parent topic")
        if has_wildcard(topic_filter):
            parent = parent_of(topic_filter)
            queues = [partition_queue(parent, number) for number in range(self._store.partition_count(parent))]
        else:
            queues = [topic_queue(topic_filter)]
        found: list[tuple[int, bytes, bytes]] = []
        for queue in queues:
            bounds = await self._store.bounds(queue)
            offset = max(bounds.end - limit, bounds.begin)
            data = (await self._store.bulk.fetch(queue, offset, limit, _PAGE_BYTES)).data
            for number, start in enumerate(record.split(data), 1):
                _, flags, _, topic, _, _, payload = record.decode(data, start)
                if matches(topic_filter, topic) and not flags & FLAG_HELD:
                    found.append((record.position_of(data, start), topic, payload))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
        return sorted(found)[-limit:]


def _level(text: str) -> Level:
    found = next((each for each in LEVELS if each == text), None)
    if found is None:
        raise invalid(f"the compatibility is one of {', '.join(LEVELS)}, and not {text[:40]!r}")
    return found


def _subject(name: str, subject: Subject, default: Level) -> pb.Subject:
    return pb.Subject(
        name=name,
        compatibility=subject.compatibility or default,
        has_own_compatibility=subject.compatibility is not None,
        versions=map(_version, subject.current),
    )


def _version(version: Version) -> pb.SchemaVersion:
    return pb.SchemaVersion(number=version.number, id=version.id, by=version.by, set_ms=version.set_ms)


def _binding(binding: Binding) -> pb.SchemaBinding:
    return pb.SchemaBinding(
        topic_filter=binding.topic_filter,
        subject=binding.subject,
        mode=binding.mode,
        version=binding.version,
        quarantine=binding.quarantine,
        by=binding.by,
        set_ms=binding.set_ms,
    )
