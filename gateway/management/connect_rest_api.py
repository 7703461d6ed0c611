"""Connectors below `/connect`, with the paths and shapes of Kafka Connect's REST API, for scripts that know it.

Each path is a method of the management surface, with the rights of the caller. A refusal has the body of Kafka
Connect's errors: `{"error_code": 404, "message": "…"}`.

Source: https://kafka.apache.org/documentation/#connect_rest
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import grpc
import orjson
from aiohttp import web
from google.protobuf.message import Message

from gateway.auth.refusal import ClientRefused
from gateway.management.http_api import HTTP_STATUS, Identify, json_body, refused
from gateway.management.methods import METHODS
from gateway.management.paging import MAX_PAGE
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.management.surface import Management
from gateway.rpc.status import RequestError, invalid, status_of
from store.errors import StoreError

PREFIX: Final = "/connect"
_METHODS: Final = {method.request.DESCRIPTOR.name: method for method in METHODS if method.service == "Connectors"}
_ACCEPTED: Final = 202
_CREATED: Final = 201
_SHOWN: Final = 200  # characters of a path

Handler = Callable[[web.Request, Manager], Awaitable[web.Response]]


class ConnectRestApi:
    """Serves the paths of Kafka Connect."""

    def __init__(self, management: Management, identify: Identify) -> None:
        self._management = management
        self._identify = identify

    def add_to(self, app: web.Application) -> None:
        one = "/connectors/{name:[^/]+}"
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "", self._root),
            ("GET", "/", self._root),
            ("GET", "/connectors", self._list),
            ("POST", "/connectors", self._create),
            ("GET", one, self._get),
            ("DELETE", one, self._delete),
            ("GET", one + "/config", self._config),
            ("PUT", one + "/config", self._set_config),
            ("PATCH", one + "/config", self._change_config),
            ("GET", one + "/status", self._status),
            ("POST", one + "/restart", self._restart),
            ("PUT", one + "/pause", partial(self._change_state, pb.PauseConnectorRequest)),
            ("PUT", one + "/resume", partial(self._change_state, pb.ResumeConnectorRequest)),
            ("PUT", one + "/stop", partial(self._change_state, pb.StopConnectorRequest)),
            ("GET", one + "/tasks", self._tasks),
            ("GET", one + "/tasks/{task:[0-9]{1,9}}/status", self._task_status),
            ("POST", one + "/tasks/{task:[0-9]{1,9}}/restart", self._restart_task),
            ("GET", one + "/offsets", self._offsets),
            ("PATCH", one + "/offsets", self._change_offsets),
            ("DELETE", one + "/offsets", self._reset_offsets),
            ("GET", "/connector-plugins", self._plugins),
            ("GET", "/connector-plugins/{class:[^/]+}/config", self._plugin_config),
            ("PUT", "/connector-plugins/{class:[^/]+}/config/validate", self._validate),
        ]
        for verb, path, handler in routes:
            app.router.add_route(verb, PREFIX + path, partial(self._answer, handler))
        app.router.add_route("*", PREFIX + "{rest:(/.*)?}", _unknown)

    async def _answer(self, handler: Handler, request: web.Request) -> web.Response:
        try:
            return await handler(request, await self._identify(request))
        except ClientRefused as error:
            return _error_of(refused(error).status, str(error), refused(error).headers)
        except (RequestError, StoreError) as error:
            code = error.code if isinstance(error, RequestError) else status_of(error)
            return _error_of(HTTP_STATUS.get(code, 500), str(error))

    async def _ask(self, message: Message, manager: Manager) -> Any:
        return await self._management.call(_METHODS[message.DESCRIPTOR.name], message, manager)

    async def _root(self, _request: web.Request, _manager: Manager) -> web.Response:
        return _json({"version": version("sluicemq"), "commit": "", "kafka_cluster_id": "sluice"})

    # --- connectors

    async def _list(self, request: web.Request, manager: Manager) -> web.Response:
        wanted = set(request.query.getall("expand", []))
        if wanted - {"status", "info"}:
            raise invalid("expand is `status` or `info`")
        found: list[pb.Connector] = []
        asked = pb.ListConnectorsRequest(limit=MAX_PAGE)
        while True:
            reply = await self._ask(asked, manager)
            found += reply.connectors
            if not reply.HasField("after"):
                break
            asked.after = reply.after
        if not wanted:
            return _json([each.name for each in found])
        shapes = {"status": _status_of, "info": _info_of}
        return _json({each.name: {name: shapes[name](each) for name in sorted(wanted)} for each in found})

    async def _create(self, request: web.Request, manager: Manager) -> web.Response:
        body = await json_body(request)
        name, config = body.get("name"), body.get("config")
        if not isinstance(name, str) or not isinstance(config, dict):
            raise invalid('the body is {"name": "…", "config": {…}}')
        wanted = body.get("initial_state", "")
        if wanted not in ("", "RUNNING", "PAUSED", "STOPPED"):
            raise invalid("initial_state is RUNNING, PAUSED or STOPPED")
        asked = pb.SetConnectorRequest(name=name, config=_texts(config), create=True, wanted=wanted)
        return _json(_info_of(await self._ask(asked, manager)), _CREATED)

    async def _connector(self, request: web.Request, manager: Manager) -> pb.Connector:
        found: pb.Connector = await self._ask(pb.GetConnectorRequest(name=request.match_info["name"]), manager)
        return found

    async def _get(self, request: web.Request, manager: Manager) -> web.Response:
        return _json(_info_of(await self._connector(request, manager)))

    async def _delete(self, request: web.Request, manager: Manager) -> web.Response:
        await self._ask(pb.DeleteConnectorRequest(name=request.match_info["name"]), manager)
        return web.Response(status=204)

    async def _config(self, request: web.Request, manager: Manager) -> web.Response:
        return _json(_config_of(await self._connector(request, manager)))

    async def _set_config(self, request: web.Request, manager: Manager) -> web.Response:
        name = request.match_info["name"]
        config = _texts(await json_body(request))
        try:
            asked = pb.SetConnectorRequest(name=name, config=config, create=True)
            return _json(_info_of(await self._ask(asked, manager)), _CREATED)
        except RequestError as error:
            if error.code != grpc.StatusCode.ALREADY_EXISTS:
                raise
        return _json(_info_of(await self._ask(pb.SetConnectorRequest(name=name, config=config), manager)))

    async def _change_config(self, request: web.Request, manager: Manager) -> web.Response:
        """Change some settings; null removes one."""
        name = request.match_info["name"]
        await self._connector(request, manager)  # which has to be there
        changes = {key: "" if value is None else value for key, value in (await json_body(request)).items()}
        asked = pb.SetConnectorRequest(name=name, config=_texts(changes), merge=True)
        return _json(_info_of(await self._ask(asked, manager)))

    async def _status(self, request: web.Request, manager: Manager) -> web.Response:
        return _json(_status_of(await self._connector(request, manager)))

    async def _change_state(
        self,
        kind: type[pb.PauseConnectorRequest | pb.ResumeConnectorRequest | pb.StopConnectorRequest],
        request: web.Request,
        manager: Manager,
    ) -> web.Response:
        await self._ask(kind(name=request.match_info["name"]), manager)
        return web.Response(status=_ACCEPTED if kind is not pb.StopConnectorRequest else 204)

    async def _restart(self, request: web.Request, manager: Manager) -> web.Response:
        """By default Kafka Connect restarts the connector without its tasks, which here are all that there is of it."""
        only_failed = request.query.get("onlyFailed", "false") == "true"
        asked = pb.RestartConnectorRequest(name=request.match_info["name"], only_failed=only_failed)
        found = await self._ask(asked, manager)
        if only_failed or request.query.get("includeTasks", "false") == "true":
            return _json(_status_of(found), _ACCEPTED)
        return web.Response(status=204)

    # --- tasks

    async def _tasks(self, request: web.Request, manager: Manager) -> web.Response:
        found = await self._connector(request, manager)
        config = _config_of(found)
        return _json([{"id": {"connector": found.name, "task": task.id}, "config": config} for task in found.tasks])

    async def _task_status(self, request: web.Request, manager: Manager) -> web.Response:
        number = int(request.match_info["task"])
        found = await self._connector(request, manager)
        for task in found.tasks:
            if task.id == number:
                return _json(_task_of(task))
        text = f"the connector {found.name!r} has no task {number}"
        raise RequestError(grpc.StatusCode.NOT_FOUND, text)

    async def _restart_task(self, request: web.Request, manager: Manager) -> web.Response:
        name, number = request.match_info["name"], int(request.match_info["task"])
        await self._ask(pb.RestartConnectorRequest(name=name, task=number), manager)
        return web.Response(status=204)

    # --- offsets

    async def _offsets(self, request: web.Request, manager: Manager) -> web.Response:
        name = request.match_info["name"]
        reply = await self._ask(pb.GetConnectorOffsetsRequest(name=name), manager)
        return _json({"offsets": [_offset_of(each) for each in reply.offsets]})

    async def _change_offsets(self, request: web.Request, manager: Manager) -> web.Response:
        body = await json_body(request)
        rows = body.get("offsets")
        if not isinstance(rows, list) or not rows:
            raise invalid('the body is {"offsets": [{"partition": {…}, "offset": {…}}, …]}')
        asked = pb.SetConnectorOffsetsRequest(name=request.match_info["name"], offsets=map(_offset_from, rows))
        await self._ask(asked, manager)
        return _json({"message": "The offsets for this connector have been altered successfully"})

    async def _reset_offsets(self, request: web.Request, manager: Manager) -> web.Response:
        await self._ask(pb.ResetConnectorOffsetsRequest(name=request.match_info["name"]), manager)
        return _json({"message": "The offsets for this connector have been reset successfully"})

    # --- plug-ins

    async def _plugins(self, _request: web.Request, manager: Manager) -> web.Response:
        reply = await self._ask(pb.ListConnectorPluginsRequest(), manager)
        rows = [(each.connector_class, each.type, each.version) for each in reply.plugins]
        return _json([{"class": name, "type": kind, "version": version} for name, kind, version in rows])

    async def _plugin_config(self, request: web.Request, manager: Manager) -> web.Response:
        name = request.match_info["class"]
        reply = await self._ask(pb.ListConnectorPluginsRequest(), manager)
        for each in reply.plugins:
            if each.connector_class == name:
                return _json([_definition_of(setting) for setting in each.settings])
        raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no connector.class {name!r}")

    async def _validate(self, request: web.Request, manager: Manager) -> web.Response:
        name = request.match_info["class"]
        config = _texts(await json_body(request))
        if config.setdefault("connector.class", name) != name:
            raise invalid(f"connector.class is {config['connector.class']!r} in the body, and {name!r} in the path")
        asked = pb.ValidateConnectorRequest(name=config.get("name", ""), config=config)
        reply = await self._ask(asked, manager)
        rows = [{"definition": _definition_of(each), "value": _value_of(each)} for each in reply.settings]
        return _json({"name": name, "error_count": reply.error_count, "groups": ["Common"], "configs": rows})


async def _unknown(request: web.Request) -> web.Response:
    return _error_of(404, f"there is no {request.method} {request.path[:_SHOWN]}")


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Settings as texts: scripts give numbers and truth values as well. Raises `RequestError`."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, (str, int, float)):
            found[name] = str(value)
        elif value is not None:
            raise invalid(f"{name[:100]}: the value of a setting is a text")
    return found


def _config_of(found: pb.Connector) -> dict[str, str]:
    return {**found.config, "name": found.name}


def _info_of(found: pb.Connector) -> dict[str, Any]:
    tasks = [{"connector": found.name, "task": task.id} for task in found.tasks]
    return {"name": found.name, "config": _config_of(found), "tasks": tasks, "type": found.type or "unknown"}


def _status_of(found: pb.Connector) -> dict[str, Any]:
    connector = {"state": found.state, "worker_id": found.worker}
    if found.trace:
        connector["trace"] = found.trace
    tasks = [_task_of(task) for task in found.tasks]
    return {"name": found.name, "connector": connector, "tasks": tasks, "type": found.type or "unknown"}


def _task_of(task: pb.ConnectorTask) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": task.id, "state": task.state, "worker_id": task.worker}
    if task.trace:
        shown["trace"] = task.trace
    return shown


def _offset_of(row: pb.ConnectorOffset) -> dict[str, Any]:
    partition = {"task": row.task, "source": row.source}
    return {"partition": partition, "offset": orjson.loads(row.offset)}


def _offset_from(row: Any) -> pb.ConnectorOffset:
    """Raises `RequestError`."""
    partition = row.get("partition") if isinstance(row, dict) else None
    if not isinstance(partition, dict) or not set(partition) <= {"task", "source"}:
        raise invalid('a partition is {"task": 0, "source": "…"}')
    task, source, offset = partition.get("task", 0), partition.get("source", ""), row.get("offset")
    if not isinstance(task, int) or not 0 <= task < 1 << 32 or not isinstance(source, str):
        raise invalid('a partition is {"task": 0, "source": "…"}')
    if offset is not None and not isinstance(offset, dict):
        raise invalid("an offset is a JSON object, or null to remove it")
    text = "" if offset is None else orjson.dumps(offset).decode()
    return pb.ConnectorOffset(task=task, source=source, offset=text)


def _definition_of(setting: pb.ConnectorSetting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "type": setting.type,
        "required": setting.required,
        "default_value": setting.default if setting.HasField("default") else None,
        "importance": setting.importance,
        "documentation": setting.documentation,
        "group": "Common",
        "width": "MEDIUM",
        "display_name": setting.name,
        "dependents": [],
        "order": 0,
    }


def _value_of(setting: pb.ConnectorSetting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value if setting.HasField("value") else None,
        "recommended_values": list(setting.choices),
        "errors": list(setting.errors),
        "visible": True,
    }


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json", status=status)


def _error_of(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    response = _json({"error_code": status, "message": text}, status)
    challenge = (headers or {}).get("WWW-Authenticate")
    if challenge is not None:
        response.headers["WWW-Authenticate"] = challenge
    return response
