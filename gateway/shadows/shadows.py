"""The shadows of a store: entries of the bucket `shadow`, changed by compare-and-set."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import grpc
import orjson

import record
from cloud_sdk.proto import sluice_pb2
from gateway.broker.append import append
from gateway.config.shadow import ShadowConfig
from gateway.mqtt.properties import CONTENT_TYPE, PAYLOAD_FORMAT, number_property, text_property
from gateway.rpc.bucket_calls import BucketCalls
from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import RequestError
from gateway.shadows.document import Document, Shadow, ShadowRejected, Update, parse_update, size_of
from gateway.shadows.topics import ShadowName, name_of_key
from record.layout import Kind
from store.api import BucketEntry, Store

BUCKET: Final = b"shadow"
PUBLISHER: Final = b"$shadow"  # of answers
KEPT_S: Final = 48 * 3600  # that the version of a deleted shadow is kept
_ATTEMPTS: Final = 16  # of one change, if others come before it
_PAGE: Final = 256  # entries
_QOS: Final = 1  # of answers
_BLOCK: Final = number_property(PAYLOAD_FORMAT, 1) + text_property(CONTENT_TYPE, b"application/json")


@dataclass(slots=True, frozen=True)
class ShadowMessage:
    """A message that answers a request, or tells others of it."""

    topic: bytes
    document: Document

    def frame(self) -> bytes:
        """Its record, unsealed."""
        payload = orjson.dumps(self.document)
        return record.frame(int(Kind.MESSAGE), _QOS, 0, self.topic, PUBLISHER, _BLOCK, payload, None)


class Shadows:
    """Carries out requests. Those for one shadow may come at the same time, and from several processes."""

    def __init__(self, store: Store, config: ShadowConfig, limits: RpcLimits) -> None:
        self.config = config
        self._store = store
        self._calls = BucketCalls(store, limits)

    async def find(self, name: ShadowName) -> Shadow:
        """A shadow. Raises `ShadowRejected` if it is not there, and `StoreError`."""
        shadow, _ = await self._read(name)
        if not shadow.exists:
            raise _not_there(name)
        return shadow

    async def names_of(self, thing: bytes) -> list[str]:
        """The names of the shadows of a thing, sorted; "" for the one without a name. Raises `StoreError`."""
        names: list[str] = []
        own = await self._store.entry(BUCKET, thing)
        if own is not None and Shadow.of_value(own.value).exists:
            names.append("")
        after: bytes | None = None
        while True:
            page = await self._store.entries(BUCKET, thing + b"/", after, _PAGE)
            for entry in page.entries:
                if Shadow.of_value(entry.value).exists:
                    names.append(name_of_key(entry.key).name.decode())
            if not page.more:
                return names
            after = page.entries[-1].key

    async def get(self, name: ShadowName, token: str | None = None) -> ShadowMessage:
        """Answer a request for a shadow. Raises `ShadowRejected` and `StoreError`."""
        try:
            shadow = await self.find(name)
        except ShadowRejected as error:
            error.token = token
            raise
        return ShadowMessage(name.topic + b"/get/accepted", _said(shadow.shown(), _now_s(), token))

    async def update(
        self, name: ShadowName, payload: bytes, position: int | None = None, batch: Collection[int] = ()
    ) -> list[ShadowMessage]:
        """Change a shadow. Returns the answers, which the caller publishes, the accepted update first. Raises
        `ShadowRejected` and `StoreError`.

        position: of the message that asks for it; None: none does. batch: positions of messages that are not settled
        yet. One that has changed the shadow before is answered again, and changes nothing.
        """
        config = self.config
        update = parse_update(payload, config.max_document, config.max_depth)
        for _ in range(_ATTEMPTS):
            shadow, revision = await self._read(name)
            now_s, topic = _now_s(), name.topic
            accepted: Document = {"state": update.state, "metadata": update.metadata(now_s)}
            if position is not None and position in shadow.applied:
                answers = [
                    ShadowMessage(topic + b"/update/accepted", _versioned(accepted, shadow, now_s, update.token))
                ]
                return answers + _delta_of(name, shadow, now_s, update.token)
            self._check_version(update, shadow)
            previous = Shadow.of_value(shadow.value()).kept() if shadow.exists else None
            if shadow.deleted_ms:
                shadow.state, shadow.metadata = {}, {}
            shadow.merge(update, now_s)
            if size_of(shadow.state) > config.max_document:
                text = f"the state would have {size_of(shadow.state)} bytes, and the limit is {config.max_document}"
                raise ShadowRejected(413, text, update.token)
            if await self._put(name, shadow, revision, position, batch, update.token):
                documents = {"previous": previous, "current": shadow.kept()}
                return [
                    ShadowMessage(topic + b"/update/accepted", _versioned(accepted, shadow, now_s, update.token)),
                    *_delta_of(name, shadow, now_s, update.token),
                    ShadowMessage(topic + b"/update/documents", _said(documents, now_s, update.token)),
                ]
        raise _contended(name, update.token)

    async def delete(
        self, name: ShadowName, token: str | None = None, position: int | None = None, batch: Collection[int] = ()
    ) -> ShadowMessage:
        """Delete a shadow. Arguments and errors: see `update`."""
        for _ in range(_ATTEMPTS):
            shadow, revision = await self._read(name)
            is_repeated = position is not None and position in shadow.applied
            if not is_repeated:
                if not shadow.exists:
                    raise _not_there(name, token)
                shadow = Shadow(version=shadow.version, deleted_ms=_now_ms(), applied=shadow.applied)
            if is_repeated or await self._put(name, shadow, revision, position, batch, token):
                return ShadowMessage(
                    name.topic + b"/delete/accepted", _said({"version": shadow.version}, _now_s(), token)
                )
        raise _contended(name, token)

    async def publish(self, answers: list[ShadowMessage]) -> None:
        """Publish answers. Raises `StoreError`."""
        await append(self._store, [answer.frame() for answer in answers])

    async def forget_deleted(self) -> None:
        """Remove the entries of shadows that were deleted long ago. Raises `StoreError`."""
        after: bytes | None = None
        before = _now_ms() - KEPT_S * 1000
        while True:
            page = await self._store.entries(BUCKET, b"", after, _PAGE)
            for entry in page.entries:
                if _is_forgettable(entry, before):
                    request = sluice_pb2.RemoveEntryRequest(
                        bucket=BUCKET.decode(), key=entry.key.decode(), expected=entry.revision
                    )
                    await self._calls.remove(request)
            if not page.more:
                return
            after = page.entries[-1].key

    async def _read(self, name: ShadowName) -> tuple[Shadow, int]:
        """A shadow and the revision of its entry, 0 if there is none."""
        entry = await self._store.entry(BUCKET, name.key)
        return (Shadow(), 0) if entry is None else (Shadow.of_value(entry.value), entry.revision)

    def _check_version(self, update: Update, shadow: Shadow) -> None:
        if update.version is None:
            return
        version = shadow.version if shadow.exists else 0
        if update.version != version:
            text = f"the shadow has version {version}, not {update.version}"
            raise ShadowRejected(409, text, update.token)

    async def _put(
        self,
        name: ShadowName,
        shadow: Shadow,
        revision: int,
        position: int | None,
        batch: Collection[int],
        token: str | None,
    ) -> bool:
        """Store a shadow. Returns False if somebody else has changed it. Raises `ShadowRejected` and `StoreError`."""
        if position is not None:
            shadow.applied = [*[each for each in shadow.applied if each in batch], position]
        request = sluice_pb2.PutEntryRequest(
            bucket=BUCKET.decode(), key=name.key.decode(), value=shadow.value(), expected=revision
        )
        try:
            return not (await self._calls.put(request)).conflicts
        except RequestError as error:
            code = 429 if error.code is grpc.StatusCode.FAILED_PRECONDITION else 400
            raise ShadowRejected(code, str(error), token) from error


def rejection(topic: bytes, error: ShadowRejected) -> ShadowMessage:
    """The answer to a request that is not carried out. topic: of the request."""
    document: Document = {"code": error.code, "message": error.text}
    return ShadowMessage(topic + b"/rejected", _said(document, _now_s(), error.token))


def _delta_of(name: ShadowName, shadow: Shadow, now_s: int, token: str | None) -> list[ShadowMessage]:
    """The message about what is desired and not reported, if there is something."""
    state, metadata = shadow.delta()
    if not state:
        return []
    document = _versioned({"state": state, "metadata": metadata}, shadow, now_s, token)
    return [ShadowMessage(name.topic + b"/update/delta", document)]


def _versioned(document: Document, shadow: Shadow, now_s: int, token: str | None) -> Document:
    return _said(document | {"version": shadow.version}, now_s, token)


def _said(document: Document, now_s: int, token: str | None) -> Document:
    """A document with what all answers have."""
    document = document | {"timestamp": now_s}
    return document if token is None else document | {"clientToken": token}


def _not_there(name: ShadowName, token: str | None = None) -> ShadowRejected:
    return ShadowRejected(404, f"there is no shadow {name.shown()!r}", token)


def _contended(name: ShadowName, token: str | None) -> ShadowRejected:
    return ShadowRejected(429, f"very many changes of the shadow {name.shown()!r} come at once: try again", token)


def _is_forgettable(entry: BucketEntry, before_ms: int) -> bool:
    try:
        return 0 < Shadow.of_value(entry.value).deleted_ms < before_ms
    except ShadowRejected:
        return False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _now_s() -> int:
    return int(time.time())
