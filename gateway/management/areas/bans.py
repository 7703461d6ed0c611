"""Bans: client ids, users and networks that are not let in, until a time or until the ban is ended."""

import asyncio
from typing import Final

import grpc

from gateway.auth.bans import ADDRESS, CLIENT, MAX_BANS, USER, is_in_force, kind_of, now_ms, of_targets
from gateway.auth.rules.sources import LOCAL, host_of, network_text
from gateway.broker.append import append
from gateway.management.paging import MAX_PAGE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.rpc.status import RequestError, invalid
from store import control
from store.api import Ban, Store

_MAX_NAME: Final = 65_000  # bytes
_MAX_REASON: Final = 1024  # bytes
_LATEST_MS: Final = 1 << 53  # which JSON can have


class BansService:
    """Implements the service `Bans`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changing = asyncio.Lock()  # the number of bans stays as it is between a check and its record

    async def list_bans(self, request: pb.ListBansRequest, _manager: Manager) -> pb.ListBansReply:
        limit = page_size(request.limit, MAX_PAGE)
        bans = await self._store.bans(after_of(request), limit)
        now = now_ms()
        reply = pb.ListBansReply(bans=[_shown(ban) for ban in bans if is_in_force(ban, now)])
        if len(bans) == limit:
            reply.after = bans[-1].target.decode()
        return reply

    async def set_ban(self, request: pb.SetBanRequest, manager: Manager) -> pb.Ban:
        target, reason = _target(request.target), request.reason.encode()
        if len(reason) > _MAX_REASON:
            raise invalid(f"a reason has at most {_MAX_REASON} bytes")
        if request.until_ms and not now_ms() < request.until_ms <= _LATEST_MS:
            raise invalid("the end of a ban is in the future; 0: it has none")
        await self._require_may_ban(target, manager)
        async with self._changing:
            if await self._store.ban(target) is None and await self._store.ban_count() >= MAX_BANS:
                text = f"there are {MAX_BANS} bans, which is the limit: end some, or ban a network"
                raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            record = control.BanSet(request.until_ms, manager.name.encode(), reason)
            await append(self._store, [record.frame(target)])
            ban = await self._store.ban(target)
        return pb.Ban(target=request.target) if ban is None else _shown(ban)

    async def end_ban(self, request: pb.EndBanRequest, _manager: Manager) -> pb.EndBanReply:
        target = _target(request.target)
        async with self._changing:
            if await self._store.ban(target) is None:
                raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no ban of {target.decode()}")
            await append(self._store, [control.BanEnded().frame(target)])
        return pb.EndBanReply()

    async def _require_may_ban(self, target: bytes, manager: Manager) -> None:
        """Raise `RequestError` for a ban of the caller itself, or by somebody who may not. Raises `StoreError`."""
        if of_targets([target]).find(b"", manager.name.encode(), host_of(manager.source), 0) is not None:
            text = f"{target.decode()} is yourself: on the machine of the node, `sluice ban` could ban it"
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
        is_super = kind_of(target) == USER and (await self._store.user_state(target.removeprefix(USER))).is_super
        if is_super and not await manager.is_super():
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, "only a super user can ban a super user")


def _target(text: str) -> bytes:
    """Check what a request bans, and return it as it is stored. Raises `RequestError`."""
    target = text.encode()
    kind = kind_of(target)
    name = target.removeprefix(kind)
    if kind not in (CLIENT, USER, ADDRESS) or not name:
        raise invalid(f"{text[:100]!r} is not client:ID, user:NAME or address:NETWORK")
    if len(name) > _MAX_NAME:
        raise invalid(f"what is banned has at most {_MAX_NAME} bytes")
    if kind != ADDRESS:
        return target
    try:
        network = network_text(name.decode())
    except ValueError as error:
        raise invalid(f"not a network: {error}") from error
    if network == LOCAL or network.endswith("/0"):
        raise invalid(f"{network!r} cannot be banned: only networks with a prefix can")
    return ADDRESS + network.encode()


def _shown(ban: Ban) -> pb.Ban:
    return pb.Ban(
        target=ban.target.decode(),
        until_ms=ban.until_ms,
        since_ms=ban.since_ms,
        by=ban.by.decode(),
        reason=ban.reason.decode(),
    )
