"""The log and its views, and the configuration of the node."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import grpc

from gateway.config.config import Config, ConfigError
from gateway.config.reload import Changes
from gateway.config.settings import settings_in_force
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.net.tls import TlsError
from gateway.rpc.status import RequestError, invalid
from store.exports.stage import STAGING
from store.local_store import LocalStore

_STAGE: Final = re.compile(r"[0-9a-f]{16}")
_ADDED_UP: Final = {  # fields of a reply, and the figures of devices that each is the sum of
    "connections": ("connections",),
    "messages_received": ("messages_received",),
    "messages_sent": ("messages_sent",),
    "bytes_received": ("bytes_received",),
    "bytes_sent": ("bytes_sent",),
    "messages_refused": ("messages_refused",),
    "messages_dropped": (
        *("dropped_qos0", "dropped_oversized", "dropped_expired"),
        *("dropped_reclaimed", "dropped_repeated"),
    ),
    "logins_failed": ("logins_failed", "service_logins_failed"),
    "protocol_errors": ("protocol_errors",),
    "limits_reached": ("users_full", "connects_too_fast", "sessions_full", "subscriptions_full"),
}

Sources = Callable[[], Mapping[str, Mapping[str, int]]]  # as `gateway.http.metrics` has them


class StorageService:
    """Implements the service `Storage`."""

    def __init__(
        self,
        store: LocalStore,
        config: Config,
        reload: Callable[[], Awaitable[Changes | None]],
        sources: Sources,
        logins_failed: Mapping[str, int],
    ) -> None:
        """reload: reads the configuration and the certificates of all processes again. sources: figures of devices, by
        gateway. logins_failed: of services, by front."""
        self._store = store
        self._config = config
        self._reload = reload
        self._sources = sources
        self._logins_failed = logins_failed

    async def get_store(self, _request: pb.GetStoreRequest, _manager: Manager) -> pb.Store:
        stats, settings = self._store.stats(), self._config.store
        return pb.Store(
            failed=stats.failed,
            begin=stats.log_begin,
            end=stats.log_end,
            checkpoint=stats.checkpoint,
            log_bytes=stats.log_bytes,
            view_bytes=stats.view_bytes,
            free_bytes=stats.free_bytes,
            is_disk_low=stats.is_disk_low,
            pending_bytes=stats.pending_bytes,
            sessions=stats.sessions,
            retained=stats.retained,
            held=stats.held,
            max_held=stats.max_held,
            segments=[pb.Segment(position=base, bytes=size) for base, size in self._store.segments()],
            retention=pb.Retention(
                age_s=settings.retention_age_s,
                parents=settings.retention_parents,
                bytes=settings.retention_bytes,
                free_bytes=settings.retention_free_bytes,
                keep_bytes=settings.retention_keep_bytes,
                hours=settings.retention_hours,
            ),
            damage=[pb.Damage(begin=begin, end=end) for begin, end in self._store.damaged()],
            damage_met=stats.damage_met,
        )

    async def get_figures(self, _request: pb.GetFiguresRequest, _manager: Manager) -> pb.Figures:
        stats, sources = self._store.stats(), list(self._sources().values())
        reply = pb.Figures(time_ms=time.time_ns() // 1_000_000, messages_stored=stats.messages)
        for field, names in _ADDED_UP.items():
            setattr(reply, field, _sum(sources, names))
        reply.logins_failed += sum(self._logins_failed.values())
        if stats.tier is not None:
            tier = stats.tier
            about = pb.Tier(segments=tier.segments, waiting_bytes=tier.waiting_bytes, error=tier.error)
            reply.tier.CopyFrom(about)
        return reply

    async def stage_store(self, request: pb.StageStoreRequest, _manager: Manager) -> pb.StageStoreReply:
        if not _STAGE.fullmatch(request.name):
            raise invalid(f"{request.name!r} is not the name of a stage")
        folder = self._config.data_dir / STAGING / request.name
        if not await asyncio.to_thread(folder.is_dir):
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no stage {request.name!r}")
        try:
            staged = await self._store.stage(folder)
        except OSError as error:
            raise RequestError(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        return pb.StageStoreReply(begin=staged.begin, position=staged.position, time_ms=staged.time_ms)

    async def get_configuration(self, _request: pb.GetConfigurationRequest, _manager: Manager) -> pb.Configuration:
        rows = [
            pb.Setting(name=each.name, value=each.value, source=each.source) for each in settings_in_force(self._config)
        ]
        return pb.Configuration(settings=rows)

    async def reload_configuration(
        self, _request: pb.ReloadConfigurationRequest, _manager: Manager
    ) -> pb.ReloadConfigurationReply:
        try:
            changes = await self._reload()
        except (ConfigError, TlsError, OSError) as error:
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        if changes is None:
            return pb.ReloadConfigurationReply()
        return pb.ReloadConfigurationReply(changed=changes.live, needs_restart=changes.waiting)


def _sum(sources: Iterable[Mapping[str, int]], names: Sequence[str]) -> int:
    return sum(figures.get(name, 0) for figures in sources for name in names)
