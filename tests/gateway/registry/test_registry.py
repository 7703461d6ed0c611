"""The registry of schemas: versions and ids, compatibility, bindings, and what several changes at once do."""

import asyncio

import grpc
import pytest

from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.rpc.status import RequestError
from gateway.schemas import entries
from store import control
from store.api import entry_subject
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import engine_of, store_messages
from tests.gateway.registry.schemas import MORE, NUMBER, bind, register, registry_of, service


async def refusal(code: grpc.StatusCode, call: object) -> str:
    with pytest.raises(RequestError) as refused:
        await call  # type: ignore[misc]
    assert refused.value.code is code, refused.value
    return str(refused.value)


async def test_versions_and_ids_are_counted(node: Node, make_node: MakeNode) -> None:
    one = await register(node, "reading")
    assert (one.number, one.id) == (1, 1)
    two = await register(node, "reading", MORE)
    assert (two.number, two.id) == (2, 2)
    other = await register(node, "other")
    assert (other.number, other.id) == (1, 3)
    # The same schema again is the version that has it.
    assert await register(node, "reading", NUMBER.replace(" ", "")) == one
    assert (await service(node).get_schema(pb.GetSchemaRequest(id=2), NODE_USER)).text == MORE
    await node.stop()
    node = await make_node()
    subject = await service(node).get_subject(pb.GetSubjectRequest(name="reading"), NODE_USER)
    assert [(each.number, each.id) for each in subject.versions] == [(1, 1), (2, 2)]
    page = await service(node).list_subjects(pb.ListSubjectsRequest(limit=1), NODE_USER)
    assert ([each.name for each in page.subjects], page.compatibility) == (["other"], "BACKWARD")
    rest = await service(node).list_subjects(pb.ListSubjectsRequest(limit=5, after=page.after), NODE_USER)
    assert [each.name for each in rest.subjects] == ["reading"]


async def test_schemas_that_do_not_fit_are_refused(node: Node) -> None:
    await register(node, "reading", MORE)
    text = await refusal(grpc.StatusCode.FAILED_PRECONDITION, register(node, "reading"))
    assert text.startswith("it is not compatible (BACKWARD): to read version 1: ")
    check = pb.CheckSchemaRequest(name="reading", kind="JSON", text=NUMBER)
    reply = await service(node).check_schema(check, NODE_USER)
    assert (reply.compatible, len(reply.problems)) == (False, 1)
    assert not (await service(node).check_schema(check.__class__(version=1, **_fields(check)), NODE_USER)).compatible
    await service(node).set_compatibility(
        pb.SetCompatibilityRequest(name="reading", compatibility="FORWARD"), NODE_USER
    )
    assert (await service(node).check_schema(check, NODE_USER)).compatible
    assert (await register(node, "reading")).number == 2
    assert (await service(node).check_schema(check, NODE_USER)).known.number == 2
    # All subjects without a setting of their own have that of all.
    reply2 = await service(node).set_compatibility(pb.SetCompatibilityRequest(compatibility="NONE"), NODE_USER)
    assert reply2.compatibility == "NONE"
    await register(node, "free", "false")
    assert (await register(node, "free", '"int"', "AVRO")).number == 2
    for name, kind, schema, why in (
        ("a/b", "JSON", "{}", "is not the name of a subject"),
        ("a", "XML", "{}", "is no kind of schema"),
        ("a", "JSON", "{", "the schema cannot be used: it is not JSON"),
        ("a", "PROTOBUF", "message", "the schema cannot be used: it is no .proto file"),
    ):
        assert why in await refusal(grpc.StatusCode.INVALID_ARGUMENT, register(node, name, schema, kind))
    wrong = service(node).set_compatibility(pb.SetCompatibilityRequest(compatibility="SOME"), NODE_USER)
    assert "BACKWARD_TRANSITIVE" in await refusal(grpc.StatusCode.INVALID_ARGUMENT, wrong)


def _fields(request: pb.CheckSchemaRequest) -> dict[str, str]:
    return {"name": request.name, "kind": request.kind, "text": request.text}


async def test_what_is_deleted_stays_under_its_id(node: Node) -> None:
    await register(node, "reading")
    await register(node, "reading", MORE)
    await bind(node, "a/#", "reading", "mark", version=1)

    async def delete(version: int) -> list[int]:
        request = pb.DeleteSubjectRequest(name="reading", version=version)
        return list((await service(node).delete_subject(request, NODE_USER)).versions)

    assert "the topic filter 'a/#' is bound" in await refusal(grpc.StatusCode.FAILED_PRECONDITION, delete(1))
    assert await delete(2) == [2]
    assert "the topic filter 'a/#' is bound" in await refusal(grpc.StatusCode.FAILED_PRECONDITION, delete(0))
    assert (await register(node, "reading", MORE)).number == 3
    await service(node).delete_binding(pb.DeleteBindingRequest(topic_filter="a/#"), NODE_USER)
    assert await delete(0) == [1, 3]
    assert (await service(node).get_schema(pb.GetSchemaRequest(id=1), NODE_USER)).text == NUMBER
    assert "no subject" in await refusal(grpc.StatusCode.NOT_FOUND, delete(0))
    assert not (await service(node).list_subjects(pb.ListSubjectsRequest(), NODE_USER)).subjects
    assert (await register(node, "reading", "false")).number == 4  # nothing is left to be compatible with
    unknown = service(node).get_schema(pb.GetSchemaRequest(id=99), NODE_USER)
    assert "no schema with the id 99" in await refusal(grpc.StatusCode.NOT_FOUND, unknown)


async def test_registrations_at_the_same_time_get_numbers_of_their_own(node: Node) -> None:
    await registry_of(node).set_level("s", "NONE")
    texts = [f'{{"const": {number}}}' for number in range(6)]
    found = await asyncio.gather(*(register(node, "s", text) for text in texts))
    assert sorted(each.number for each in found) == [1, 2, 3, 4, 5, 6]
    assert len({each.id for each in found}) == 6
    for text, version in zip(texts, found, strict=True):
        assert (await registry_of(node).schema(version.id)).text == text


async def test_bindings(node: Node) -> None:
    await register(node, "reading")
    await bind(node, "b/#", "reading", "refuse")
    await bind(node, "a/+/t", "reading", "quarantine", "bad/a")
    await bind(node, "a/+/t", "reading", "quarantine", "bad/b")
    found = (await service(node).list_bindings(pb.ListBindingsRequest(), NODE_USER)).bindings
    assert [(each.topic_filter, each.mode, each.quarantine) for each in found] == [
        ("a/+/t", "quarantine", "bad/b"),
        ("b/#", "refuse", ""),
    ]
    for arguments, code, why in (
        (("a/#/b", "reading", "mark"), grpc.StatusCode.INVALID_ARGUMENT, "is not a topic filter"),
        (("a", "reading", "drop"), grpc.StatusCode.INVALID_ARGUMENT, "refuse, mark or quarantine"),
        (("a", "reading", "quarantine"), grpc.StatusCode.INVALID_ARGUMENT, "is not a topic for messages in quarantine"),
        (("a", "none", "mark"), grpc.StatusCode.NOT_FOUND, "there is no subject 'none'"),
        (("a", "reading", "mark", "", 7), grpc.StatusCode.NOT_FOUND, "has no version 7"),
    ):
        assert why in await refusal(code, bind(node, *arguments))  # type: ignore[arg-type]
    unknown = service(node).delete_binding(pb.DeleteBindingRequest(topic_filter="x"), NODE_USER)
    assert "has no binding" in await refusal(grpc.StatusCode.NOT_FOUND, unknown)


async def test_there_are_limits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.registry.registry.MAX_SUBJECTS", 1)
    monkeypatch.setattr("gateway.registry.registry.MAX_VERSIONS", 2)
    monkeypatch.setattr("gateway.registry.registry.MAX_BINDINGS", 1)
    monkeypatch.setattr("gateway.registry.registry.MAX_IDS", 2)
    await register(node, "s")
    full = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1 subjects" in await refusal(full, register(node, "t"))
    await register(node, "s", MORE)
    assert "2 versions" in await refusal(full, register(node, "s", "{}"))
    await bind(node, "a", "s", "mark")
    assert "1 bindings" in await refusal(full, bind(node, "b", "s", "mark"))
    monkeypatch.setattr("gateway.registry.registry.MAX_VERSIONS", 3)
    assert "2 schemas" in await refusal(full, register(node, "s", "{}"))


async def test_payloads_are_tried_without_storing_anything(node: Node) -> None:
    await register(node, "reading")
    for payload, fault in ((b'{"t": 1}', ""), (b"{}", '/: "t" is a required property')):
        request = pb.CheckPayloadRequest(name="reading", payload=payload)
        assert (await service(node).check_payload(request, NODE_USER)).fault == fault
    positions = await store_messages(
        node, (b"home/a/t", b'{"t": 1}'), (b"home/b/t", b"no JSON"), (b"home/b/x", b"[]"), (b"home/a/t", b'{"t": 2.5}')
    )
    infer = await service(node).infer_schema(pb.InferSchemaRequest(topic_filter="home/+/t"), NODE_USER)
    assert infer.messages == 2
    assert '"required"' in infer.text
    for request in (
        pb.PreviewSchemaRequest(topic_filter="home/+/t", name="reading"),
        pb.PreviewSchemaRequest(topic_filter="home/+/t", kind="JSON", text=infer.text),
    ):
        preview = await service(node).preview_schema(request, NODE_USER)
        assert preview.messages == 3
        assert [(each.position, each.topic) for each in preview.faults] == [(positions[1], "home/b/t")]
    one = await service(node).infer_schema(pb.InferSchemaRequest(topic_filter="home/a/t", limit=1), NODE_USER)
    assert one.messages == 1
    for topic_filter, why in (("#", "is not a wildcard"), ("a/#/b", "not a topic filter"), ("home/b/x/y", "no schema")):
        wrong = service(node).infer_schema(pb.InferSchemaRequest(topic_filter=topic_filter), NODE_USER)
        assert why in await refusal(grpc.StatusCode.INVALID_ARGUMENT, wrong)


async def test_entries_that_others_wrote_are_left_out(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    await register(node, "reading")
    await bind(node, "a/#", "reading", "refuse")
    engine = engine_of(node)
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    frames = [
        control.EntryPut(b"no JSON").frame(entry_subject(entries.BUCKET, b"binding/b")),
        control.EntryPut(b'{"topic_filter": "c", "subject": "gone", "mode": "refuse"}').frame(
            entry_subject(entries.BUCKET, b"binding/c")
        ),
    ]
    engine.append(frames, done.set_result)
    await done
    await node._schemas.refresh()
    checks = node._schemas.checks
    assert checks.fault(b"a/b", b"x") is not None
    assert checks.fault(b"c", b"x") is None
    assert "the entry 'binding/b' of schemas cannot be read" in caplog.text
    assert "payloads of 'c' are not checked: the subject gone has no version" in caplog.text
