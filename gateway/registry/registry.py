"""The registry of schemas: subjects with their versions, and bindings, in the bucket `schemas` of the log."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import grpc
import msgspec

from cloud_sdk.proto import sluice_pb2
from gateway.registry.compiling import compiled, incompatible
from gateway.rpc.bucket_calls import BucketCalls
from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import RequestError, invalid
from gateway.schemas.entries import (
    BINDING_PREFIX,
    BUCKET,
    CONFIG,
    IDS,
    MAX_BINDINGS,
    MAX_IDS,
    MAX_SUBJECTS,
    MAX_VERSIONS,
    SUBJECT_PREFIX,
    Binding,
    Ids,
    Settings,
    StoredSchema,
    Subject,
    Version,
    binding_key,
    check_binding,
    id_key,
    subject_key,
)
from gateway.schemas.errors import InvalidSchema
from gateway.schemas.kinds import Level, Schema
from store.api import Store

_PAGE: Final = 1000
_ATTEMPTS: Final = 8  # at a change that others make at the same time
_MAX_COMPILED: Final = 256  # schemas that are kept; when there are more, all are forgotten
_SHOWN: Final = 5  # reasons in an error

Value = TypeVar("Value", bound=msgspec.Struct)


@dataclass(slots=True, frozen=True)
class Kept(Generic[Value]):
    """A value of the bucket."""

    value: Value
    revision: int


@dataclass(slots=True, frozen=True)
class Candidate:
    """A schema beside the versions of a subject."""

    schema: Schema
    known: Version | None  # the version that has this schema already
    problems: Sequence[str]  # why it may not follow the versions


class SchemaRegistry:
    """Reads and changes the registry. Every method raises `RequestError` and `StoreError`."""

    def __init__(self, store: Store, limits: RpcLimits) -> None:
        self._store = store
        self._calls = BucketCalls(store, limits)
        self._compiled: dict[int, Schema] = {}

    # --- reads

    async def subjects(self, after: str | None, limit: int) -> list[tuple[str, Subject]]:
        """Up to `limit` subjects with versions, sorted by name, from after a name on."""
        found: list[tuple[str, Subject]] = []
        key = None if after is None else SUBJECT_PREFIX + after.encode()
        while len(found) < limit:
            page = await self._store.entries(BUCKET, SUBJECT_PREFIX, key, _PAGE)
            for entry in page.entries:
                subject = _decoded(entry.key, entry.value, Subject)
                if subject.current:
                    found.append((entry.key.removeprefix(SUBJECT_PREFIX).decode(), subject))
            if not page.more:
                break
            key = page.entries[-1].key
        return found[:limit]

    async def subject(self, name: str) -> Subject:
        """A subject with versions."""
        kept = await self._kept(_checked_key(name), Subject)
        if kept is None or not kept.value.current:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no subject {name!r}")
        return kept.value

    async def version(self, name: str, number: int) -> Version:
        """A version of a subject. number: 0: the newest one."""
        versions = (await self.subject(name)).current
        found = next((each for each in versions if each.number == number), None) if number else versions[-1]
        if found is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"the subject {name!r} has no version {number}")
        return found

    async def schema(self, number: int) -> StoredSchema:
        """The schema with an id."""
        kept = await self._kept(id_key(number), StoredSchema)
        if kept is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no schema with the id {number}")
        return kept.value

    async def compiled(self, number: int) -> Schema:
        """The schema with an id, compiled."""
        known = self._compiled.get(number)
        if known is None:
            stored = await self.schema(number)
            known = await parsed(stored.kind, stored.text)
            if len(self._compiled) >= _MAX_COMPILED:
                self._compiled.clear()
            self._compiled[number] = known
        return known

    async def default_level(self) -> Level:
        """The compatibility of subjects without one of their own."""
        kept = await self._kept(CONFIG, Settings)
        return Settings().compatibility if kept is None else kept.value.compatibility

    async def bindings(self) -> list[Binding]:
        """All bindings, sorted by topic filter."""
        found: list[Binding] = []
        after: bytes | None = None
        while True:
            page = await self._store.entries(BUCKET, BINDING_PREFIX, after, _PAGE)
            found += [_decoded(entry.key, entry.value, Binding) for entry in page.entries]
            if not page.more:
                return found
            after = page.entries[-1].key

    async def candidate(self, name: str, kind: str, text: str) -> Candidate:
        """Compare a schema with the versions of a subject, which may not be there yet."""
        kept = await self._kept(_checked_key(name), Subject)
        return await self._candidate(kept.value if kept is not None else Subject([]), await parsed(kind, text))

    async def problems(self, name: str, kind: str, text: str, number: int) -> Sequence[str]:
        """Why a schema may not follow one version of a subject, by the level of the subject. number: 0: the newest
        one."""
        subject, version = await self.subject(name), await self.version(name, number)
        earlier = [(version.number, await self.compiled(version.id))]
        level = subject.compatibility or await self.default_level()
        return await incompatible(level, await parsed(kind, text), earlier)

    # --- changes

    async def register(self, name: str, kind: str, text: str, by: str) -> Version:
        """Add a version to a subject, or find the one that has this schema."""
        key = _checked_key(name)
        schema = await parsed(kind, text)
        number = 0
        for _ in range(_ATTEMPTS):
            kept = await self._kept(key, Subject)
            subject = kept.value if kept is not None else Subject([])
            candidate = await self._candidate(subject, schema)
            if candidate.known is not None:
                return candidate.known
            if candidate.problems:
                level = subject.compatibility or await self.default_level()
                reasons = "; ".join(candidate.problems[:_SHOWN])
                raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, f"it is not compatible ({level}): {reasons}")
            if len(subject.versions) >= MAX_VERSIONS:
                raise _full(f"the subject {name!r} has had {MAX_VERSIONS} versions")
            if kept is None and await self._count(SUBJECT_PREFIX) >= MAX_SUBJECTS:
                raise _full(f"there are {MAX_SUBJECTS} subjects")
            number = number or await self._new_id(StoredSchema(schema.kind, schema.text))
            version = Version(len(subject.versions) + 1, number, by, _now_ms())
            changed = msgspec.structs.replace(subject, versions=[*subject.versions, version])
            if await self._put(key, changed, 0 if kept is None else kept.revision):
                return version
        raise _contended()

    async def delete(self, name: str, number: int) -> Sequence[int]:
        """Delete a version of a subject, or all of them. number: 0: all. Returns the numbers. The schemas stay under
        their ids, since stored messages may name them."""
        key = _checked_key(name)
        for _ in range(_ATTEMPTS):
            kept = await self._kept(key, Subject)
            await self.version(name, number)
            assert kept is not None
            gone = [each.number for each in kept.value.current if number in (0, each.number)]
            left = len(kept.value.current) - len(gone)
            for binding in await self.bindings():
                if binding.subject == name and (binding.version in gone or not left):
                    text = f"the topic filter {binding.topic_filter!r} is bound to it: delete that binding first"
                    raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
            versions = [
                msgspec.structs.replace(each, is_deleted=each.is_deleted or each.number in gone)
                for each in kept.value.versions
            ]
            if await self._put(key, msgspec.structs.replace(kept.value, versions=versions), kept.revision):
                return gone
        raise _contended()

    async def set_level(self, name: str, level: Level | None) -> None:
        """Set the compatibility of a subject; None: it has that of all. name: "": of all subjects without one."""
        if not name:
            await self._put(CONFIG, Settings() if level is None else Settings(level), None)
            return
        key = _checked_key(name)
        for _ in range(_ATTEMPTS):
            kept = await self._kept(key, Subject)
            subject = kept.value if kept is not None else Subject([])
            if kept is None and await self._count(SUBJECT_PREFIX) >= MAX_SUBJECTS:
                raise _full(f"there are {MAX_SUBJECTS} subjects")
            changed = msgspec.structs.replace(subject, compatibility=level)
            if await self._put(key, changed, 0 if kept is None else kept.revision):
                return
        raise _contended()

    async def bind(self, binding: Binding) -> None:
        """Check the payloads of a topic filter from now on, or differently."""
        try:
            check_binding(binding)
            key = binding_key(binding.topic_filter)
        except InvalidSchema as error:
            raise invalid(str(error)) from error
        await self.version(binding.subject, binding.version)
        if await self._store.entry(BUCKET, key) is None and await self._count(BINDING_PREFIX) >= MAX_BINDINGS:
            raise _full(f"there are {MAX_BINDINGS} bindings")
        await self._put(key, binding, None)

    async def unbind(self, topic_filter: str) -> None:
        """Check the payloads of a topic filter no more."""
        try:
            key = binding_key(topic_filter)
        except InvalidSchema as error:
            raise invalid(str(error)) from error
        if await self._store.entry(BUCKET, key) is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"the topic filter {topic_filter!r} has no binding")
        request = sluice_pb2.RemoveEntryRequest(bucket=BUCKET.decode(), key=key.decode())
        await self._calls.remove(request)

    # ---

    async def _candidate(self, subject: Subject, schema: Schema) -> Candidate:
        earlier = [(each, await self.compiled(each.id)) for each in subject.current]
        for version, other in earlier:
            if other.kind == schema.kind and other.canonical == schema.canonical:
                return Candidate(schema, version, [])
        level = subject.compatibility or await self.default_level()
        numbered = [(version.number, other) for version, other in earlier]
        return Candidate(schema, None, await incompatible(level, schema, numbered))

    async def _new_id(self, stored: StoredSchema) -> int:
        """Keep a schema under an id that no other one has had."""
        for _ in range(_ATTEMPTS):
            kept = await self._kept(IDS, Ids)
            number = (0 if kept is None else kept.value.last) + 1
            if number > MAX_IDS:
                raise _full(f"there have been {MAX_IDS} schemas")
            if await self._put(IDS, Ids(number), 0 if kept is None else kept.revision):
                await self._put(id_key(number), stored, 0)
                return number
        raise _contended()

    async def _kept(self, key: bytes, kind: type[Value]) -> Kept[Value] | None:
        entry = await self._store.entry(BUCKET, key)
        return None if entry is None else Kept(_decoded(key, entry.value, kind), entry.revision)

    async def _put(self, key: bytes, value: msgspec.Struct, expected: int | None) -> bool:
        """Put a value. expected: the revision of its key; 0: it is not there; None: any. Returns whether that held."""
        data = msgspec.json.encode(value)
        request = sluice_pb2.PutEntryRequest(bucket=BUCKET.decode(), key=key.decode(), value=data, expected=expected)
        return not (await self._calls.put(request)).conflicts

    async def _count(self, prefix: bytes) -> int:
        count, after = 0, None
        while True:
            page = await self._store.entries(BUCKET, prefix, after, _PAGE)
            count += len(page.entries)
            if not page.more:
                return count
            after = page.entries[-1].key


async def parsed(kind: str, text: str) -> Schema:
    """Compile a schema. Raises `RequestError`."""
    try:
        return await compiled(kind, text)
    except InvalidSchema as error:
        raise invalid(f"the schema cannot be used: {error}") from error


def _checked_key(name: str) -> bytes:
    try:
        return subject_key(name)
    except InvalidSchema as error:
        raise invalid(str(error)) from error


def _decoded(key: bytes, value: bytes, kind: type[Value]) -> Value:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        text = f"the entry {key.decode()!r} of the bucket {BUCKET.decode()} cannot be read: {error}"
        raise RequestError(grpc.StatusCode.DATA_LOSS, text) from error


def _now_ms() -> int:
    return int(time.time() * 1000)


def _full(what: str) -> RequestError:
    return RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{what}, which is the limit")


def _contended() -> RequestError:
    text = "others change the same subject all the time: repeat this call later"
    return RequestError(grpc.StatusCode.UNAVAILABLE, text)
