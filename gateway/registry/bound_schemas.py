"""The schemas by which a process checks payloads, as the log has them."""

import asyncio
import logging
from typing import Final, TypeVar

import msgspec

from gateway.observe.throttled_log import ThrottledLog
from gateway.registry.compiling import compiled
from gateway.schemas.entries import (
    BINDING_PREFIX,
    BUCKET,
    MAX_BINDINGS,
    Binding,
    StoredSchema,
    Subject,
    check_binding,
    id_key,
    subject_key,
)
from gateway.schemas.errors import SchemaError
from gateway.schemas.kinds import Schema
from gateway.schemas.payload_checks import PayloadChecks, SubjectCheck
from store.api import BucketStore
from store.errors import StoreError

log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0  # between two looks for changes, each of which is one lookup in the store
_PAGE: Final = 1000

Value = TypeVar("Value", bound=msgspec.Struct)


class BoundSchemas:
    """Keeps the checks of a process as the bucket says: within about a second of a change, and at once where `refresh`
    is called. What cannot be used is left out, with a warning."""

    def __init__(self, store: BucketStore) -> None:
        self._store = store
        self.checks = PayloadChecks()
        self._revision = 0  # of the bucket, which the checks are made of
        self._schemas: dict[int, Schema] = {}  # those in use, by id
        self._refreshing = asyncio.Lock()
        self._log = ThrottledLog(log)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what there is, and follow changes. Raises StoreError."""
        await self.refresh()
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def refresh(self) -> None:
        """Take over what has changed. Raises StoreError."""
        async with self._refreshing:
            revision = self._revision
            more = True
            while more:
                found = await self._store.bucket_changes(BUCKET, revision, _PAGE)
                revision, more = found.revision, found.more
            if revision != self._revision:
                await self._read()
                self._revision = revision

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self.refresh()
            except StoreError as error:
                self._log.warning("read", f"schemas stay as they were: reading them failed: {error}")
            except Exception:
                log.exception("schemas stay as they were: reading them failed")

    async def _read(self) -> None:
        before, self._schemas = self._schemas, {}
        subjects: dict[str, Subject | None] = {}
        bound: list[tuple[Binding, SubjectCheck]] = []
        after: bytes | None = None
        while True:
            page = await self._store.entries(BUCKET, BINDING_PREFIX, after, _PAGE)
            for entry in page.entries:
                binding = self._decoded(entry.key, entry.value, Binding)
                if binding is None or len(bound) >= MAX_BINDINGS:
                    continue
                try:
                    check_binding(binding)
                    if binding.subject not in subjects:
                        subjects[binding.subject] = await self._subject(binding.subject)
                    bound.append((binding, await self._check_of(binding, subjects[binding.subject], before)))
                except SchemaError as error:
                    self._log.warning("binding", f"payloads of {binding.topic_filter!r} are not checked: {error}")
            if not page.more:
                break
            after = page.entries[-1].key
        self.checks.replace(bound)

    async def _subject(self, name: str) -> Subject | None:
        key = subject_key(name)
        entry = await self._store.entry(BUCKET, key)
        return None if entry is None else self._decoded(key, entry.value, Subject)

    async def _check_of(self, binding: Binding, subject: Subject | None, before: dict[int, Schema]) -> SubjectCheck:
        """The check of a binding. before: schemas that were in use. Raises `SchemaError` and StoreError."""
        versions = subject.current if subject is not None else []
        by_id: dict[int, Schema] = {}
        chosen: Schema | None = None
        for version in versions:
            schema = self._schemas.get(version.id) or before.get(version.id) or await self._compiled(version.id)
            self._schemas[version.id] = by_id[version.id] = schema
            if binding.version in (0, version.number):
                chosen = schema
        if chosen is None:
            what = f"version {binding.version}" if binding.version else "version"
            raise SchemaError(f"the subject {binding.subject} has no {what}")
        return SubjectCheck(binding.subject, chosen, by_id)

    async def _compiled(self, number: int) -> Schema:
        key = id_key(number)
        entry = await self._store.entry(BUCKET, key)
        stored = None if entry is None else self._decoded(key, entry.value, StoredSchema)
        if stored is None:
            raise SchemaError(f"there is no schema {number}")
        return await compiled(stored.kind, stored.text)

    def _decoded(self, key: bytes, value: bytes, kind: type[Value]) -> Value | None:
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.MsgspecError as error:
            self._log.warning("entry", f"the entry {key.decode()!r} of schemas cannot be read: {error}")
            return None
