"""Ways to the schemas of a node."""

from gateway.management.areas.schemas import SchemasService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.node.services import rpc_limits
from gateway.registry.registry import SchemaRegistry
from tests.gateway.management.world import engine_of

NUMBER = '{"type": "object", "properties": {"t": {"type": "number"}}, "required": ["t"], "additionalProperties": false}'
MORE = NUMBER.replace('"number"}}', '"number"}, "h": {"type": "number"}}')


def registry_of(node: Node) -> SchemaRegistry:
    return SchemaRegistry(engine_of(node), rpc_limits(node.config))


def service(node: Node) -> SchemasService:
    return SchemasService(engine_of(node), registry_of(node), node._schemas.refresh)


async def register(node: Node, name: str, text: str = NUMBER, kind: str = "JSON") -> pb.SchemaVersion:
    return await service(node).register_schema(pb.RegisterSchemaRequest(name=name, kind=kind, text=text), NODE_USER)


async def bind(node: Node, topic_filter: str, name: str, mode: str, quarantine: str = "", version: int = 0) -> None:
    request = pb.SetBindingRequest(
        topic_filter=topic_filter, name=name, mode=mode, quarantine=quarantine, version=version
    )
    await service(node).set_binding(request, NODE_USER)
