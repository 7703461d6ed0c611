"""The reading part of the REST API of Confluent's schema registry, below `/schema-registry`.

Paths, fields and error codes are those of https://docs.confluent.io/platform/current/schema-registry/develop/api.html.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import grpc
import orjson
from aiohttp import web
from google.protobuf.message import Message

from gateway.auth.refusal import ClientRefused
from gateway.management.http_api import Identify, refused
from gateway.management.methods import METHODS
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.management.surface import Management
from gateway.rpc.status import RequestError
from gateway.schemas.kinds import KINDS
from store.errors import StoreError

PREFIX: Final = "/schema-registry"
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_BODY_SECONDS: Final = 30.0  # for a body to arrive
_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_SCHEMA: Final = 40403
_NO_LEVEL: Final = 40408
_INVALID_SCHEMA: Final = 42201
_INVALID_VERSION: Final = 42202
_FAILED: Final = 50001
_LARGEST: Final = 1 << 31
_METHODS: Final = {method.request: method for method in METHODS if method.service == "Schemas"}

Handler = Callable[[web.Request, Manager], Awaitable[object]]


class _RegistryError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConfluentApi:
    """Answers by the methods of the service `Schemas`, with the rights of the caller."""

    def __init__(self, management: Management, identify: Identify) -> None:
        self._management = management
        self._identify = identify

    def add_to(self, app: web.Application) -> None:
        subject, version = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
        routes: tuple[tuple[str, str, Handler], ...] = (
            ("GET", "/subjects", self._subjects),
            ("GET", f"{subject}/versions", self._versions),
            ("GET", version, self._version),
            ("GET", f"{version}/schema", self._version_schema),
            ("POST", subject, self._look_up),
            ("GET", "/schemas/types", self._types),
            ("GET", "/schemas/ids/{id}", self._schema),
            ("GET", "/schemas/ids/{id}/schema", self._schema_text),
            ("GET", "/config", self._level),
            ("GET", "/config/{subject}", self._subject_level),
            ("POST", f"/compatibility{version}", self._compatibility),
            ("POST", f"/compatibility{subject}/versions", self._compatibility),
        )
        for verb, path, handler in routes:
            app.router.add_route(verb, PREFIX + path, self._answering(handler))

    def _answering(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                found = await handler(request, await self._identify(request))
            except _RegistryError as error:
                return _answer({"error_code": error.code, "message": str(error)}, error.code // 100)
            except (ClientRefused, RequestError, StoreError) as error:
                plain = refused(error)
                body = {"error_code": plain.status * 100 + 1, "message": str(error)}
                return _answer(body, plain.status, plain.headers.get("WWW-Authenticate"))
            return _answer(found)

        return answer

    async def _ask(self, request: Message, manager: Manager, missing: int = _NO_SUBJECT) -> Any:
        """The reply of a method. missing: the error code for what is not there. Raises `_RegistryError`, and
        `RequestError` for what has no code of its own."""
        try:
            return await self._management.call(_METHODS[type(request)], request, manager)
        except RequestError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                raise _RegistryError(missing, str(error)) from error
            if error.code is grpc.StatusCode.INVALID_ARGUMENT:
                raise _RegistryError(_INVALID_SCHEMA, str(error)) from error
            if error.code is grpc.StatusCode.DATA_LOSS:
                raise _RegistryError(_FAILED, str(error)) from error
            raise

    async def _subjects(self, _request: web.Request, manager: Manager) -> list[str]:
        names: list[str] = []
        request = pb.ListSubjectsRequest(limit=1000)
        while True:
            reply: pb.ListSubjectsReply = await self._ask(request, manager)
            names += [each.name for each in reply.subjects]
            if not reply.HasField("after"):
                return names
            request.after = reply.after

    async def _versions(self, request: web.Request, manager: Manager) -> list[int]:
        subject = await self._subject(request, manager)
        return [each.number for each in subject.versions]

    async def _version(self, request: web.Request, manager: Manager) -> dict[str, object]:
        subject = await self._subject(request, manager)
        number = _version_number(request)
        found = next((each for each in subject.versions if each.number == number), None)
        if number == 0:
            found = subject.versions[-1]
        if found is None:
            raise _RegistryError(_NO_VERSION, f"Version {number} not found.")
        return await self._shown(subject.name, found, manager)

    async def _version_schema(self, request: web.Request, manager: Manager) -> bytes:
        return str((await self._version(request, manager))["schema"]).encode()

    async def _look_up(self, request: web.Request, manager: Manager) -> dict[str, object]:
        subject = await self._subject(request, manager)
        kind, text = await _schema_of(request)
        check = pb.CheckSchemaRequest(name=subject.name, kind=kind, text=text)
        reply: pb.CheckSchemaReply = await self._ask(check, manager)
        if not reply.HasField("known"):
            raise _RegistryError(_NO_SCHEMA, "Schema not found")
        return await self._shown(subject.name, reply.known, manager)

    async def _types(self, _request: web.Request, _manager: Manager) -> object:
        return list(KINDS)

    async def _schema(self, request: web.Request, manager: Manager) -> dict[str, object]:
        return _schema_fields(await self._schema_by_id(request, manager))

    async def _schema_text(self, request: web.Request, manager: Manager) -> bytes:
        return (await self._schema_by_id(request, manager)).text.encode()

    async def _level(self, _request: web.Request, manager: Manager) -> dict[str, str]:
        reply: pb.ListSubjectsReply = await self._ask(pb.ListSubjectsRequest(limit=1), manager)
        return {"compatibilityLevel": reply.compatibility}

    async def _subject_level(self, request: web.Request, manager: Manager) -> dict[str, str]:
        subject = await self._subject(request, manager)
        if not subject.has_own_compatibility and request.query.get("defaultToGlobal") != "true":
            text = f"Subject '{subject.name}' does not have subject-level compatibility configured"
            raise _RegistryError(_NO_LEVEL, text)
        return {"compatibilityLevel": subject.compatibility}

    async def _compatibility(self, request: web.Request, manager: Manager) -> dict[str, object]:
        subject = await self._subject(request, manager)
        kind, text = await _schema_of(request)
        check = pb.CheckSchemaRequest(name=subject.name, kind=kind, text=text)
        if "version" in request.match_info:
            check.version = _version_number(request) or subject.versions[-1].number
        reply: pb.CheckSchemaReply = await self._ask(check, manager, _NO_VERSION)
        found: dict[str, object] = {"is_compatible": reply.compatible}
        if request.query.get("verbose") == "true":
            found["messages"] = list(reply.problems)
        return found

    async def _subject(self, request: web.Request, manager: Manager) -> pb.Subject:
        name = request.match_info["subject"]
        return cast("pb.Subject", await self._ask(pb.GetSubjectRequest(name=name), manager))

    async def _schema_by_id(self, request: web.Request, manager: Manager) -> pb.Schema:
        text = request.match_info["id"]
        if not text.isdecimal() or int(text[:20]) >= _LARGEST:
            raise _RegistryError(_NO_SCHEMA, f"Schema {text[:40]} not found")
        return cast("pb.Schema", await self._ask(pb.GetSchemaRequest(id=int(text)), manager, _NO_SCHEMA))

    async def _shown(self, name: str, version: pb.SchemaVersion, manager: Manager) -> dict[str, object]:
        schema: pb.Schema = await self._ask(pb.GetSchemaRequest(id=version.id), manager, _NO_SCHEMA)
        return {"subject": name, "version": version.number, "id": version.id, **_schema_fields(schema)}


def _schema_fields(schema: pb.Schema) -> dict[str, object]:
    """The kind is left out for Avro, as there."""
    return {**({} if schema.kind == "AVRO" else {"schemaType": schema.kind}), "schema": schema.text}


def _version_number(request: web.Request) -> int:
    """0: the newest one. Raises `_RegistryError`."""
    text = request.match_info["version"]
    if text in ("latest", "-1"):
        return 0
    if not text.isdecimal() or not 0 < int(text[:20]) < _LARGEST:
        raise _RegistryError(_INVALID_VERSION, f"The specified version '{text[:40]}' is not a valid version id.")
    return int(text)


async def _schema_of(request: web.Request) -> tuple[str, str]:
    """The kind and the text of the schema in a body. Raises `_RegistryError`."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = orjson.loads(await request.read())
    except (TimeoutError, orjson.JSONDecodeError, web.RequestPayloadError, web.HTTPRequestEntityTooLarge) as error:
        raise _RegistryError(_INVALID_SCHEMA, f"the body cannot be read: {error}") from error
    text, kind = (body.get("schema"), body.get("schemaType", "AVRO")) if isinstance(body, dict) else (None, None)
    if not isinstance(text, str) or not isinstance(kind, str):
        raise _RegistryError(
            _INVALID_SCHEMA, "the body is a JSON object with the text `schema`, and maybe `schemaType`"
        )
    if body.get("references"):
        raise _RegistryError(_INVALID_SCHEMA, "references between schemas are not supported")
    return kind, text


def _answer(body: object, status: int = 200, challenge: str | None = None) -> web.Response:
    """body: JSON; bytes as they are."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = {"WWW-Authenticate": challenge} if challenge else None
    return web.Response(body=data, status=status, content_type=_CONTENT_TYPE, headers=headers)
