"""Device shadows: read, changed and deleted, with the messages that a request over MQTT would have for answers."""

from typing import Final

import grpc
import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from gateway.management.proto import management_pb2 as pb
from gateway.management.proto.options_pb2 import PUB, TOPIC
from gateway.management.rights import Manager, require_one
from gateway.rpc.status import RequestError, invalid
from gateway.shadows.document import Document, ShadowRejected
from gateway.shadows.shadows import Shadows
from gateway.shadows.topics import InvalidShadowName, ShadowName, shadow_name

_STATUS: Final = {
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
}  # others are INVALID_ARGUMENT


class ShadowsService:
    """Implements the service `Shadows`."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows

    async def list_shadows(self, request: pb.ListShadowsRequest, manager: Manager) -> pb.ListShadowsReply:
        name = await _permitted(request.thing, "", "get", manager)
        try:
            return pb.ListShadowsReply(names=await self._shadows.names_of(name.thing))
        except ShadowRejected as error:
            raise _refused(error) from error

    async def get_shadow(self, request: pb.GetShadowRequest, manager: Manager) -> pb.Shadow:
        name = await _permitted(request.thing, request.name, "get", manager)
        try:
            return _shown((await self._shadows.find(name)).shown())
        except ShadowRejected as error:
            raise _refused(error) from error

    async def update_shadow(self, request: pb.UpdateShadowRequest, manager: Manager) -> pb.Shadow:
        name = await _permitted(request.thing, request.name, "update", manager)
        document: Document = {}
        if request.HasField("state"):
            document["state"] = MessageToDict(request.state)
        if request.HasField("version"):
            document["version"] = request.version
        try:
            answers = await self._shadows.update(name, orjson.dumps(document))
        except ShadowRejected as error:
            raise _refused(error) from error
        await self._shadows.publish(answers)
        return _shown(answers[0].document)

    async def delete_shadow(self, request: pb.DeleteShadowRequest, manager: Manager) -> pb.DeleteShadowReply:
        name = await _permitted(request.thing, request.name, "delete", manager)
        try:
            answer = await self._shadows.delete(name)
        except ShadowRejected as error:
            raise _refused(error) from error
        await self._shadows.publish([answer])
        return pb.DeleteShadowReply(version=answer.document["version"])


async def _permitted(thing: str, name: str, operation: str, manager: Manager) -> ShadowName:
    """The shadow that a caller may ask for. Raises `RequestError` and `StoreError`."""
    try:
        found = shadow_name(thing, name)
    except InvalidShadowName as error:
        raise invalid(str(error)) from error
    await require_one(manager, PUB, TOPIC, f"{found.topic.decode()}/{operation}")
    return found


def _shown(document: Document) -> pb.Shadow:
    return pb.Shadow(
        state=_struct(document["state"]), metadata=_struct(document["metadata"]), version=document["version"]
    )


def _struct(document: Document) -> Struct:
    struct = Struct()
    struct.update(document)
    return struct


def _refused(error: ShadowRejected) -> RequestError:
    return RequestError(_STATUS.get(error.code, grpc.StatusCode.INVALID_ARGUMENT), error.text)
