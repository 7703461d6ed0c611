"""Calls about entries of buckets: reads, and changes that the log decides."""

import asyncio
import secrets
from typing import Final

import grpc

from cloud_sdk.proto import sluice_pb2 as pb
from gateway.rpc.access.visibility import caller_user
from gateway.rpc.limits import RpcLimits
from gateway.rpc.reply_budget import reply_budget
from gateway.rpc.request_fields import within
from gateway.rpc.status import RequestError, invalid
from store.api import (
    MAX_ENTRY_NAME,
    MAX_ENTRY_VALUE,
    MAX_TOKEN,
    Appended,
    BucketEntry,
    ChangeOutcome,
    Store,
    entry_subject,
    is_entry_name,
)
from store.control import EntryPut, EntryRemoved
from store.errors import OutcomeUnknown

_TOKEN_BYTES: Final = 16  # of a token that the caller leaves to the node


class BucketCalls:
    """Answers calls about buckets. Every method raises `RequestError` for an invalid request, and `StoreError`."""

    def __init__(self, store: Store, limits: RpcLimits) -> None:
        self._store = store
        self._limits = limits

    async def get(self, request: pb.GetEntryRequest) -> pb.GetEntryReply:
        bucket, key = bucket_name(request.bucket), entry_key(request.key)
        async with reply_budget() as budget:
            entry = await self._store.entry(bucket, key)
            budget.add(0 if entry is None else len(entry.value))
        return pb.GetEntryReply(entry=None if entry is None else _shown(entry))

    async def put(self, request: pb.PutEntryRequest) -> pb.ChangeEntryReply:
        """Append the change, and say what became of it."""
        if len(request.value) > MAX_ENTRY_VALUE:
            raise invalid(f"a value has at most {MAX_ENTRY_VALUE} bytes, not {len(request.value)}")
        expected = request.expected if request.HasField("expected") else None
        token = _token(request.token)
        limits = self._limits
        change = EntryPut(request.value, expected, token, limits.max_entries, limits.max_entry_bytes)
        return await self._changed(change, bucket_name(request.bucket), entry_key(request.key), token)

    async def remove(self, request: pb.RemoveEntryRequest) -> pb.ChangeEntryReply:
        """Append the change, and say what became of it."""
        expected = request.expected if request.HasField("expected") else None
        token = _token(request.token)
        bucket, key = bucket_name(request.bucket), entry_key(request.key)
        return await self._changed(EntryRemoved(expected, token), bucket, key, token)

    async def entries(self, request: pb.EntriesRequest) -> pb.EntriesReply:
        bucket, prefix = bucket_name(request.bucket), request.prefix.encode()
        limit = within(request.limit, self._limits.max_entry_page)
        async with reply_budget() as budget:
            after = request.after.encode() if request.HasField("after") else None
            page = await self._store.entries(bucket, prefix, after, limit)
            budget.add(sum([len(entry.value) for entry in page.entries]))
        reply = pb.EntriesReply(entries=map(_shown, page.entries))
        if page.more:
            reply.after = reply.entries[-1].key
        return reply

    async def changes(self, request: pb.BucketChangesRequest) -> pb.BucketChangesReply:
        bucket, prefix = bucket_name(request.bucket), request.prefix.encode()
        limit = within(request.limit, self._limits.max_entry_page)
        async with reply_budget() as budget:
            found = await self._store.bucket_changes(bucket, request.revision, limit)
            entries = [entry for entry in found.entries if entry.key.startswith(prefix)]
            budget.add(sum([len(entry.value) for entry in entries]))
        shown = map(_shown, entries)
        return pb.BucketChangesReply(entries=shown, revision=found.revision, more=found.more, is_reset=found.is_reset)

    async def _changed(
        self, change: EntryPut | EntryRemoved, bucket: bytes, key: bytes, token: bytes
    ) -> pb.ChangeEntryReply:
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._store.append(
            [change.frame(entry_subject(bucket, key), caller_user())],
            lambda appended: None if answer.done() else answer.set_result(appended),
        )
        error = (await answer).error
        if error is not None:
            raise error
        decided = await self._store.entry_change(token)
        if decided is None:
            raise OutcomeUnknown("very many changes of buckets came at once: the outcome of this one is not known")
        if decided.outcome is ChangeOutcome.FULL:
            limits = self._limits
            most = f"{limits.max_entries} entries with {limits.max_entry_bytes} bytes"
            text = f"all buckets together may have {most} (buckets.max_entries, buckets.max_bytes): remove some"
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
        return pb.ChangeEntryReply(conflicts=decided.outcome is ChangeOutcome.CONFLICT, revision=decided.revision)


def bucket_name(text: str) -> bytes:
    """The name of a bucket. Raises `RequestError`."""
    if "/" in text:
        raise invalid(f"the name of a bucket has no '/': {text[:100]!r}")
    return _name(text, "the name of a bucket")


def entry_key(text: str) -> bytes:
    """A key of a bucket. Raises `RequestError`."""
    return _name(text, "a key")


def _name(text: str, what: str) -> bytes:
    if not is_entry_name(text):
        raise invalid(f"{what} has 1 to {MAX_ENTRY_NAME} bytes of printable characters without '+' and '#'")
    return text.encode()


def _token(given: bytes) -> bytes:
    if len(given) > MAX_TOKEN:
        raise invalid(f"a token has at most {MAX_TOKEN} bytes")
    return given or secrets.token_bytes(_TOKEN_BYTES)


def _shown(entry: BucketEntry) -> pb.Entry:
    return pb.Entry(key=entry.key.decode(), value=entry.value, revision=entry.revision, put_ms=entry.put_ms)
