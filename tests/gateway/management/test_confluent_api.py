"""Confluent's REST API for reading, through Confluent's own client, and what that client does not ask."""

import asyncio
import struct
from typing import Any

import aiohttp
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.people import set_rules, set_user
from tests.gateway.registry.schemas import MORE, NUMBER, bind, register, registry_of

AVRO = '{"type": "record", "name": "Reading", "fields": [{"name": "t", "type": "double"}]}'


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    made = await make_node(http__auth=["password", "anonymous"])
    await set_rules(made, "", "allow LIST,GET cluster:schemas")
    await register(made, "reading")
    await register(made, "reading", MORE)
    await register(made, "home-value", AVRO, "AVRO")
    return made


def url_of(node: Node) -> str:
    return f"http://127.0.0.1:{node.ports.http}/schema-registry"


async def ask(node: Node, path: str, body: object = None) -> tuple[int, Any]:
    verb = "GET" if body is None else "POST"
    async with aiohttp.ClientSession() as session, session.request(verb, url_of(node) + path, json=body) as answer:
        assert answer.content_type == "application/vnd.schemaregistry.v1+json"
        return answer.status, await answer.json(content_type=None)


async def test_confluents_client_reads(node: Node) -> None:
    def use() -> None:
        client = SchemaRegistryClient({"url": url_of(node)})
        assert client.get_subjects() == ["home-value", "reading"]
        assert client.get_versions("reading") == [1, 2]
        newest = client.get_latest_version("reading")
        assert (newest.version, newest.schema_id, newest.schema.schema_type) == (2, 2, "JSON")
        assert newest.schema.schema_str == MORE
        assert client.get_version("reading", 1).schema.schema_str == NUMBER
        assert client.get_schema(3).schema_str == AVRO
        assert client.get_schema(3).schema_type == "AVRO"
        assert client.lookup_schema("reading", Schema(NUMBER, "JSON")).version == 1
        assert client.get_compatibility() == "BACKWARD"
        assert not client.test_compatibility("reading", Schema(NUMBER, "JSON"))
        assert client.test_compatibility("reading", Schema(MORE, "JSON"), 1)
        for call, code in (
            (lambda: client.get_versions("none"), 40401),
            (lambda: client.get_version("reading", 7), 40402),
            (lambda: client.get_schema(99), 40403),
            (lambda: client.lookup_schema("reading", Schema("true", "JSON")), 40403),
            (lambda: client.lookup_schema("reading", Schema("{", "JSON")), 42201),
        ):
            with pytest.raises(SchemaRegistryError) as refused:
                call()
            assert refused.value.error_code == code

    await asyncio.to_thread(use)


async def test_what_confluents_serializers_write_is_checked(node: Node) -> None:
    def use() -> tuple[bytes, bytes]:
        client = SchemaRegistryClient({"url": url_of(node)})
        settings = {"auto.register.schemas": False, "use.latest.version": True}
        context = SerializationContext("home", MessageField.VALUE)
        avro = AvroSerializer(client, conf=settings)({"t": 21.5}, context)
        assert AvroDeserializer(client)(avro, context) == {"t": 21.5}
        names = {**settings, "subject.name.strategy": lambda _context, _name: "reading"}
        return avro, JSONSerializer(MORE, client, conf=names)({"t": 1, "h": 2}, context)

    avro, as_json = await asyncio.to_thread(use)
    assert avro == b"\0\0\0\0\3" + struct.pack("<d", 21.5)
    assert as_json.startswith(b"\0\0\0\0\2{")
    await bind(node, "a/#", "home-value", "refuse")
    await bind(node, "b/#", "reading", "refuse")
    checks = node._schemas.checks
    assert checks.fault(b"a/1", avro) is None
    assert checks.fault(b"a/1", avro[:-1]) is not None
    assert checks.fault(b"b/1", as_json) is None
    assert checks.fault(b"b/1", avro) is not None


async def test_the_rest_of_the_paths(node: Node) -> None:
    assert await ask(node, "/schemas/types") == (200, ["AVRO", "JSON", "PROTOBUF"])
    assert (await ask(node, "/schemas/ids/3/schema"))[1]["name"] == "Reading"
    assert (await ask(node, "/subjects/reading/versions/latest/schema"))[1]["required"] == ["t"]
    assert await ask(node, "/config/reading?defaultToGlobal=true") == (200, {"compatibilityLevel": "BACKWARD"})
    assert (await ask(node, "/config/reading"))[1]["error_code"] == 40408
    await registry_of(node).set_level("reading", "FULL")
    assert await ask(node, "/config/reading") == (200, {"compatibilityLevel": "FULL"})
    body = {"schema": NUMBER, "schemaType": "JSON"}
    status, found = await ask(node, "/compatibility/subjects/reading/versions?verbose=true", body)
    assert (status, found["is_compatible"], len(found["messages"])) == (200, True, 0)  # it is version 1
    body["schema"] = "false"
    status, found = await ask(node, "/compatibility/subjects/reading/versions/latest?verbose=true", body)
    assert (status, found["is_compatible"], len(found["messages"])) == (200, False, 1)
    for path, sent, code in (
        ("/subjects/reading/versions/x", None, 42202),
        ("/subjects/reading/versions/0", None, 42202),
        ("/subjects/none", {"schema": "{}"}, 40401),
        ("/subjects/reading", {}, 42201),
        ("/subjects/reading", {"schema": "{}", "references": [{"name": "x"}]}, 42201),
        ("/compatibility/subjects/reading/versions/9", body, 40402),
        ("/schemas/ids/x", None, 40403),
        ("/schemas/ids/99999999999999999999999", None, 40403),
    ):
        status, found = await ask(node, path, sent)
        assert (status, found["error_code"]) == (code // 100, code), path


async def test_callers_need_rights(make_node: MakeNode) -> None:
    node = await make_node(http__auth=["password"])
    await set_user(node, "reader", b"secret")
    assert (await ask(node, "/subjects"))[0] == 401
    async with aiohttp.ClientSession(auth=aiohttp.BasicAuth("reader", "secret")) as session:
        async with session.get(f"{url_of(node)}/subjects") as answer:
            assert answer.status == 403
            assert (await answer.json(content_type=None))["error_code"] == 40301
        await set_rules(node, "reader", "allow LIST cluster:schemas")
        async with session.get(f"{url_of(node)}/subjects") as answer:
            assert (answer.status, await answer.json(content_type=None)) == (200, [])
