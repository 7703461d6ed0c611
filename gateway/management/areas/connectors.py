"""Connectors: set, checked, paused, restarted and deleted. Workers read what is written here, and run the tasks.

A connector is an entry `connector/NAME` of the bucket `connect`. What workers say of their tasks is in the entries
`worker/ID`, and the offsets of sources are in `offset/NAME/TASK/SOURCE`.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, unquote

import grpc
import orjson

from cloud_sdk.proto import sluice_pb2 as sdk
from connect.api import Connector, InvalidSettings, Setting, SettingType, SinkConnector
from connect.common_settings import common_settings
from connect.configuration import configured_class, problems_of
from connect.plugins import CONNECTORS
from gateway.management.paging import AT_ONCE, after_of, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.observe.connectors import (
    BUCKET,
    CONNECTOR,
    GONE_MS,
    GROUP,
    STATES,
    WORKER,
    connector_of,
    entries_of,
    fields_of,
    lag_of,
    said_of,
)
from gateway.rpc.bucket_calls import BucketCalls
from gateway.rpc.limits import RpcLimits
from gateway.rpc.status import RequestError, invalid
from store.api import BucketEntry
from store.engine import Engine

_BUCKET: Final = BUCKET.decode()
_CONNECTOR: Final = CONNECTOR.decode()
_WORKER: Final = WORKER.decode()
_OFFSET: Final = "offset/"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_CONFIG: Final = 64 << 10  # bytes
_MAX_CONNECTORS: Final = 1000
_MAX_WORKERS: Final = 1000
_MAX_OFFSETS: Final = 10_000
_MASK: Final = "***"  # in place of a password
_OF_TASK: Final = (  # what a heartbeat says of a task beside its number and state
    "trace",
    "records_in",
    "records_out",
    "dropped",
    "failed",
    "dead",
    "retried",
    "last_error",
    "last_error_ms",
)


Workers = Mapping[str, tuple[dict[str, Any], int]]  # what each said last, by its id, and when (ms)


class ConnectorsService:
    """Implements the service `Connectors`."""

    def __init__(self, engine: Engine, limits: RpcLimits) -> None:
        self._store = engine
        self._buckets = BucketCalls(engine, limits)
        self._changing = asyncio.Lock()  # a connector stays as it is between a look and its change

    # --- plug-ins

    async def list_connector_plugins(
        self, _request: pb.ListConnectorPluginsRequest, _manager: Manager
    ) -> pb.ListConnectorPluginsReply:
        return pb.ListConnectorPluginsReply(plugins=[_plugin(name) for name in CONNECTORS.names()])

    async def validate_connector(
        self, request: pb.ValidateConnectorRequest, _manager: Manager
    ) -> pb.ValidateConnectorReply:
        config = dict(request.config)
        if request.name:
            config.setdefault("name", request.name)
        found, errors = _class_of(config), problems_of(config)
        for name in _passwords(config):
            if config[name] == _MASK:  # stays as it is
                errors.pop(name, None)
        reply = pb.ValidateConnectorReply(connector_class=found.name, error_count=sum(map(bool, errors.values())))
        for setting in (*common_settings(found), *found.settings):
            shown = _setting(setting)
            if setting.name in config:
                shown.value = _MASK if setting.type is SettingType.PASSWORD else config[setting.name]
            shown.errors.extend(errors.pop(setting.name, ()))
            reply.settings.append(shown)
        for name, texts in sorted(errors.items()):  # settings that there are not
            reply.settings.append(pb.ConnectorSetting(name=name, type="STRING", importance="LOW", errors=texts))
        return reply

    # --- connectors

    async def list_connectors(self, request: pb.ListConnectorsRequest, _manager: Manager) -> pb.ListConnectorsReply:
        limit = page_size(request.limit)
        reply = pb.ListConnectorsReply()
        after = after_of(request)
        entries = await self._page(_CONNECTOR, None if after is None else after.decode(), limit)
        workers = await self._workers()
        for number, entry in enumerate(entries, 1):
            reply.connectors.append(await self._shown(entry, workers))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        if len(entries) == limit:
            reply.after = _name_of(entries[-1])
        return reply

    async def get_connector(self, request: pb.GetConnectorRequest, _manager: Manager) -> pb.Connector:
        return await self._shown(await self._entry(request.name), await self._workers())

    async def set_connector(self, request: pb.SetConnectorRequest, manager: Manager) -> pb.Connector:
        name = _checked(request.name)
        if request.wanted and request.wanted not in STATES:
            raise invalid(f"a connector is {', '.join(STATES)}, and not {request.wanted[:40]!r}")
        async with self._changing:
            entry = await self._find(name)
            if entry is None:
                await self._require_room()
            elif request.create:
                raise RequestError(grpc.StatusCode.ALREADY_EXISTS, f"there is a connector {name!r}")
            known = {} if entry is None else connector_of(entry)
            config = _changed(request, known.get("config", {}))
            errors = problems_of(config)
            if errors:
                raise invalid(str(InvalidSettings(errors)))
            record = {
                "config": config,
                "state": request.wanted or known.get("state", "RUNNING"),
                "by": manager.name,
                "restarts": known.get("restarts", {}),
            }
            await self._put(name, record, entry)
        return await self._shown(await self._entry(name), await self._workers())

    async def delete_connector(self, request: pb.DeleteConnectorRequest, _manager: Manager) -> pb.DeleteConnectorReply:
        async with self._changing:
            entry = await self._entry(request.name)
            await self._change_entry(entry.key, None, entry.revision)
        return pb.DeleteConnectorReply()

    async def pause_connector(self, request: pb.PauseConnectorRequest, manager: Manager) -> pb.Connector:
        return await self._change(request.name, manager, {"state": "PAUSED"})

    async def stop_connector(self, request: pb.StopConnectorRequest, manager: Manager) -> pb.Connector:
        return await self._change(request.name, manager, {"state": "STOPPED"})

    async def resume_connector(self, request: pb.ResumeConnectorRequest, manager: Manager) -> pb.Connector:
        return await self._change(request.name, manager, {"state": "RUNNING"})

    async def restart_connector(self, request: pb.RestartConnectorRequest, manager: Manager) -> pb.Connector:
        async with self._changing:
            entry = await self._entry(request.name)
            known = connector_of(entry)
            tasks = _tasks_of(request.name, await self._workers())
            restarts = dict(known["restarts"])
            if request.HasField("task"):
                tasks = [task for task in tasks if task.id == request.task]
                if not tasks:
                    text = f"the connector {request.name!r} has no task {request.task}"
                    raise RequestError(grpc.StatusCode.NOT_FOUND, text)
            if request.HasField("task") or request.only_failed:
                again = [str(task.id) for task in tasks if task.state == "FAILED" or not request.only_failed]
            else:
                again = ["connector"]
            for each in again:
                restarts[each] = restarts.get(each, 0) + 1
            await self._put(request.name, {**known, "restarts": restarts, "by": manager.name}, entry)
        return await self._shown(await self._entry(request.name), await self._workers())

    async def _change(self, name: str, manager: Manager, changes: Mapping[str, Any]) -> pb.Connector:
        async with self._changing:
            entry = await self._entry(name)
            await self._put(name, {**connector_of(entry), **changes, "by": manager.name}, entry)
        return await self._shown(await self._entry(name), await self._workers())

    # --- offsets

    async def get_connector_offsets(
        self, request: pb.GetConnectorOffsetsRequest, _manager: Manager
    ) -> pb.ConnectorOffsets:
        await self._entry(request.name)
        return await self._offsets(request.name)

    async def set_connector_offsets(
        self, request: pb.SetConnectorOffsetsRequest, _manager: Manager
    ) -> pb.ConnectorOffsets:
        async with self._changing:
            await self._require_stopped(request.name)
            changes = [(_offset_key(request.name, each), _offset_of(each)) for each in request.offsets]
            for key, value in changes:
                await self._change_entry(key, value, None)
        return await self._offsets(request.name)

    async def reset_connector_offsets(
        self, request: pb.ResetConnectorOffsetsRequest, _manager: Manager
    ) -> pb.ConnectorOffsets:
        async with self._changing:
            await self._require_stopped(request.name)
            for entry in await self._page(f"{_OFFSET}{request.name}/", None, _MAX_OFFSETS):
                await self._change_entry(entry.key, None, entry.revision)
        return await self._offsets(request.name)

    async def _offsets(self, name: str) -> pb.ConnectorOffsets:
        prefix = f"{_OFFSET}{name}/"
        reply = pb.ConnectorOffsets()
        for entry in await self._page(prefix, None, _MAX_OFFSETS):
            task, _, source = entry.key.decode()[len(prefix) :].partition("/")
            if task.isdecimal():
                reply.offsets.add(
                    task=int(task), source=unquote(source), offset=orjson.dumps(fields_of(entry)).decode()
                )
        return reply

    async def _require_stopped(self, name: str) -> None:
        """Raise `RequestError` unless a connector that keeps offsets is stopped, and no worker runs a task of it."""
        entry = await self._entry(name)
        known = connector_of(entry)
        if issubclass(_class_of(known["config"]), SinkConnector):
            text = f"{name!r} is a sink: its place is that of its group, `sluice group reset {GROUP.decode()}{name}`"
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
        if known["state"] != "STOPPED" or _tasks_of(name, await self._workers()):
            text = f"the connector {name!r} runs: stop it before its offsets are changed"
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)

    # --- workers

    async def list_connect_workers(
        self, _request: pb.ListConnectWorkersRequest, _manager: Manager
    ) -> pb.ListConnectWorkersReply:
        reply = pb.ListConnectWorkersReply()
        for worker_id, (said, heard_ms) in sorted((await self._workers()).items()):
            host, version = str(said.get("host", "")), str(said.get("version", ""))
            tasks = len(said["tasks"])
            reply.workers.add(id=worker_id, host=host, version=version, heard_ms=heard_ms, tasks=tasks)
        return reply

    async def _workers(self) -> Workers:
        """What workers said last, by id, and when."""
        oldest = int(time.time() * 1000) - GONE_MS
        entries = await self._page(_WORKER, None, _MAX_WORKERS)
        return {
            entry.key.decode()[len(_WORKER) :]: (said_of(entry), entry.put_ms)
            for entry in entries
            if entry.put_ms >= oldest
        }

    # --- what is shown

    async def _shown(self, entry: BucketEntry, workers: Workers) -> pb.Connector:
        known, name = connector_of(entry), _name_of(entry)
        config, wanted = known["config"], known["state"]
        shown = pb.Connector(name=name, wanted=wanted, by=known["by"], set_ms=entry.put_ms)
        hidden = _passwords(config)
        shown.config.update({each: _MASK if each in hidden else text for each, text in config.items()})
        with suppress(InvalidSettings):
            shown.type = "sink" if issubclass(configured_class(config), SinkConnector) else "source"
        for task in _tasks_of(name, workers):
            shown.tasks.append(task)
        shown.worker = next((task.worker for task in shown.tasks if task.worker), "")
        failed = [task for task in shown.tasks if task.state == "FAILED"]
        shown.state = wanted
        if wanted != "STOPPED" and not shown.tasks:
            shown.state = "UNASSIGNED"
        elif wanted != "STOPPED" and len(failed) == len(shown.tasks):
            shown.state, shown.trace = "FAILED", failed[0].trace
        if shown.type == "sink":
            lag = await lag_of(self._store, name.encode(), config.get("topics", ""))
            if lag is not None:
                shown.lag = lag
        return shown

    # --- entries

    async def _entry(self, name: str) -> BucketEntry:
        """Raises `RequestError`."""
        entry = await self._find(_checked(name))
        if entry is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no connector {name!r}")
        return entry

    async def _find(self, name: str) -> BucketEntry | None:
        return await self._store.entry(_BUCKET.encode(), (_CONNECTOR + name).encode())

    async def _require_room(self) -> None:
        if len(await self._page(_CONNECTOR, None, _MAX_CONNECTORS)) >= _MAX_CONNECTORS:
            text = f"there are {_MAX_CONNECTORS} connectors, which is the limit"
            raise RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    async def _page(self, prefix: str, after: str | None, limit: int) -> list[BucketEntry]:
        """Up to `limit` entries whose keys begin with a prefix, from after the name `after` on."""
        behind = None if after is None else (prefix + after).encode()
        return [each async for each in entries_of(self._store, prefix.encode(), behind, limit)]

    async def _put(self, name: str, record: Mapping[str, Any], known: BucketEntry | None) -> None:
        value = orjson.dumps(record)
        if len(value) > _MAX_CONFIG:
            raise invalid(f"the settings of a connector have at most {_MAX_CONFIG} bytes")
        await self._change_entry((_CONNECTOR + name).encode(), value, 0 if known is None else known.revision)

    async def _change_entry(self, key: bytes, value: bytes | None, expected: int | None) -> None:
        """Put an entry, or remove it. Raises `RequestError` if it has another revision than expected."""
        name = key.decode()
        if value is None:
            removed = sdk.RemoveEntryRequest(bucket=_BUCKET, key=name, expected=expected)
            reply = await self._buckets.remove(removed)
        else:
            put = sdk.PutEntryRequest(bucket=_BUCKET, key=name, value=value, expected=expected)
            reply = await self._buckets.put(put)
        if reply.conflicts:
            text = f"{name} was changed meanwhile: look at it, and try again"
            raise RequestError(grpc.StatusCode.ABORTED, text)


def _checked(name: str) -> str:
    """Raises `RequestError`."""
    if not _NAME.fullmatch(name):
        raise invalid(f"a connector has a name of letters, digits, '.', '_' and '-', of up to 128, not {name[:150]!r}")
    return name


def _name_of(entry: BucketEntry) -> str:
    return entry.key.decode()[len(_CONNECTOR) :]


def _class_of(config: Mapping[str, str]) -> type[Connector]:
    """Raises `RequestError`."""
    try:
        return configured_class(config)
    except InvalidSettings as error:
        raise invalid(str(error)) from error


def _changed(request: pb.SetConnectorRequest, known: Mapping[str, str]) -> dict[str, str]:
    """The settings after a change. Raises `RequestError`."""
    config = {**known, **request.config} if request.merge else dict(request.config)
    config = {name: value for name, value in config.items() if value}
    for name in _passwords(config):
        if config[name] == _MASK:
            if name not in known:
                raise invalid(f"{name}: {_MASK} is shown in place of a password, and there is none yet")
            config[name] = known[name]
    if config.setdefault("name", request.name) != request.name:
        raise invalid(f"the setting `name` is {config['name'][:150]!r}, and the connector {request.name!r}")
    return config


def _plugin(name: str) -> pb.ConnectorPlugin:
    found = CONNECTORS.find(name)
    kind = "sink" if issubclass(found, SinkConnector) else "source"
    shown = pb.ConnectorPlugin(connector_class=name, type=kind, version=found.version, description=found.description)
    shown.settings.extend(map(_setting, found.settings))
    return shown


def _setting(setting: Setting) -> pb.ConnectorSetting:
    shown = pb.ConnectorSetting(
        name=setting.name,
        type=setting.type.value,
        required=setting.required,
        importance=setting.importance.value,
        documentation=setting.documentation,
        choices=setting.choices,
    )
    if setting.default is not None:
        shown.default = _text_of(setting.default)
    return shown


def _text_of(value: object) -> str:
    """A default as a user would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _passwords(config: Mapping[str, str]) -> set[str]:
    """The settings whose values are not shown. Without the plug-in nobody knows which are passwords."""
    try:
        found = configured_class(config)
    except InvalidSettings:
        return config.keys() - {each.name for each in common_settings(SinkConnector)}
    return {each.name for each in found.settings if each.type is SettingType.PASSWORD and each.name in config}


def _tasks_of(name: str, workers: Workers) -> list[pb.ConnectorTask]:
    """The tasks of a connector, as workers report them, sorted by number. Of two reports the later one counts."""
    found: dict[int, pb.ConnectorTask] = {}
    for worker_id, (said, _) in sorted(workers.items(), key=lambda each: each[1][1]):
        for each in said["tasks"]:
            try:
                if each["connector"] != name:
                    continue
                known = {field: each[field] for field in _OF_TASK if field in each}
                task = pb.ConnectorTask(id=each["task"], state=each["state"], worker=worker_id, **known)
            except (KeyError, TypeError, ValueError):
                continue  # who may write heartbeats may write anything
            found[task.id] = task
    return [found[number] for number in sorted(found)]


def _offset_key(name: str, row: pb.ConnectorOffset) -> bytes:
    return f"{_OFFSET}{name}/{row.task}/{quote(row.source, safe='')}".encode()


def _offset_of(row: pb.ConnectorOffset) -> bytes | None:
    """The value of an entry; None removes it. Raises `RequestError`."""
    if not row.offset:
        return None
    try:
        found = orjson.loads(row.offset)
    except orjson.JSONDecodeError as error:
        raise invalid(f"an offset is a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise invalid("an offset is a JSON object")
    return orjson.dumps(found)
