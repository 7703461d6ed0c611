"""The audit log, as its files in the folder of this machine have it."""

import asyncio
from pathlib import Path
from typing import Any, Final

import grpc
import orjson

from gateway.auth.audit import ENDING
from gateway.management.paging import page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.rpc.status import RequestError

_MAX_READ: Final = 64 << 20  # bytes of the newest files, in one call


class AuditService:
    """Implements the service `Audit`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def list_audit(self, request: pb.ListAuditRequest, _manager: Manager) -> pb.ListAuditReply:
        if not self._folder:
            text = "there is no audit log: audit.folder says where one is written"
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
        limit = page_size(request.limit)
        return await asyncio.to_thread(_find, Path(self._folder), request, limit)


def _find(folder: Path, request: pb.ListAuditRequest, limit: int) -> pb.ListAuditReply:
    """The newest events that are wanted, the oldest of them first."""
    files = []
    for path in folder.glob(f"audit-*{ENDING}"):
        try:
            files.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:
            continue  # it was just removed
    found: list[dict[str, Any]] = []
    left = _MAX_READ
    reply = pb.ListAuditReply()
    for changed_ns, path in sorted(files, reverse=True):
        if changed_ns // 1_000_000 < request.since_ms:
            break
        if left <= 0:
            reply.is_cut = True
            break
        data = _end_of(path, left)
        left -= len(data)
        found += _wanted(data, request)
        found = sorted(found, key=lambda each: each["time_ms"])[-limit:]
    for fields in found:
        reply.events.add(**fields)
    return reply


def _end_of(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            return file.read(most)
    except OSError:
        return b""


def _wanted(data: bytes, request: pb.ListAuditRequest) -> list[dict[str, Any]]:
    found = []
    words = [text.encode() for text in (request.user, request.event, request.source) if text.isalnum()]
    for line in data.splitlines():
        if not all(word in line for word in words):
            continue
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # cut off, or being written
        if not request.since_ms <= fields["time_ms"] < (request.until_ms or 1 << 62):
            continue
        if request.denied and fields["allowed"]:
            continue
        given = ("user", request.user), ("event", request.event), ("source", request.source)
        if all(not wanted or fields.get(name) == wanted for name, wanted in given):
            found.append(fields)
    return found
