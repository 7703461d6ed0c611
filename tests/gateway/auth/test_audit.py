"""The audit log: what is in it, what is not, and that it is bounded."""

import asyncio
import json
import logging
import resource
from pathlib import Path

import grpc
import pytest

import record
from cloud_sdk import Client, Credentials, InvalidArgument, NotAllowed
from cloud_sdk.errors import Unauthenticated
from gateway.auth import audit_topic
from gateway.auth.audit import ADMINISTRATION, AUTHENTICATION, AUTHORIZATION, AuditLog, Event
from gateway.auth.audit_topic import AuditTopic
from gateway.broker.append import append
from gateway.config.audit import AuditConfig
from gateway.management.areas.audit import AuditService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.node import Node
from gateway.rocketmq.proto import rocketmq_pb2 as rocket
from gateway.rpc.status import RequestError
from sluice.cli import main
from store import control
from store.api import Action, Appended, Done, Resource, Rule
from store.errors import StoreBusy, StoreClosed, StoreError
from tests.gateway.conftest import MakeNode
from tests.gateway.management.world import BY_NAME, OPERATOR, PASSWORD, Refused, World
from tests.gateway.mqtt import wire
from tests.gateway.people import SCRAM, access, auth, challenged, login, scram, set_rules, set_user
from tests.gateway.raw import PUBACK, RawClient
from tests.gateway.scram_client import ScramClient
from tests.gateway.several import Several
from tests.waiting import until

DENIED = Event(AUTHORIZATION, False, "PUB", "topic:x", "alice", "c", "192.0.2.7")


def lines(folder: Path) -> list[dict[str, object]]:
    """All events of all files, by time."""
    texts = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return sorted(map(json.loads, texts), key=lambda each: each["time_ms"])


@pytest.fixture
async def node(make_node: MakeNode, tmp_path: Path) -> Node:
    made = await make_node(
        audit__folder=str(tmp_path / "audit"),
        mqtt__auth=["password", "scram"],
        grpc__auth=["password"],
        http__auth=["password"],
    )
    await set_user(made, "alice", b"wonderland")
    await set_user(made, OPERATOR, PASSWORD.encode())
    await set_rules(made, "alice", "allow both home/#", "deny publish away/#", "deny SUB group:$share/shut/*")
    return made


async def noted(folder: Path, **wanted: object) -> dict[str, object]:
    """The one event that has these fields, as soon as it is written."""
    found: list[dict[str, object]] = []

    def is_there() -> bool:
        found[:] = [each for each in lines(folder) if wanted.items() <= each.items()]
        return bool(found)

    await until(is_there)
    assert len(found) == 1, found
    return found[0]


async def test_devices_are_in_the_audit_log(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland", 5, b"c")
    await login(node.ports.mqtt, b"mallory", b"guess-of-mallory", 5, b"m")
    await scram(node.ports.mqtt, b"alice", b"wonderland", b"s")
    event = await noted(folder, event=AUTHENTICATION, client="c")
    assert (event["allowed"], event["user"], event["source"], event["process"]) == (True, "alice", "127.0.0.1", "node")
    event = await noted(folder, event=AUTHENTICATION, client="m")
    assert (event["allowed"], event["user"], event["why"]) == (False, "mallory", "wrong user name or password")
    assert (await noted(folder, event=AUTHENTICATION, client="s"))["allowed"]
    await client.publish(b"home/x", b"the payload")
    client.send(wire.publish(5, b"away/x", b"the payload", 1, 1))
    await client.expect(PUBACK)
    assert await client.subscribe((b"away/#", 1)) == b"\x87"
    event = await noted(folder, action="PUB")
    assert (event["event"], event["allowed"], event["resource"]) == (AUTHORIZATION, False, "topic:away/x")
    assert (event["user"], event["client"], event["source"]) == ("alice", "c", "127.0.0.1")
    assert event["rule"] == "deny publish away/#"
    event = await noted(folder, action="SUB")
    assert event["resource"] == "topic:away/#"
    assert "rule" not in event  # none allows it
    assert await client.subscribe((b"$share/shut/home/#", 1)) == b"\x87"
    event = await noted(folder, resource="topic:$share/shut/home/#")
    assert event["rule"] == "deny SUB group:$share/shut/*"
    text = "".join(path.read_text() for path in folder.iterdir())
    for secret in ("wonderland", "guess-of-mallory", "the payload"):
        assert secret not in text


async def test_scram_is_in_the_audit_log_with_the_name_that_it_claims(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    await scram(node.ports.mqtt, b"alice", b"guess", b"g", username=b"bob")
    event = await noted(folder, client="g")
    assert (event["action"], event["allowed"], event["user"]) == ("CONNECT", False, "alice")
    client, _, _ = await scram(node.ports.mqtt, b"alice", b"wonderland", b"s")
    for password in (b"wonderland", b"guess"):
        proof = ScramClient(b"alice", password)
        client.send(auth(0x19, SCRAM, proof.first()))
        client.send(auth(0x18, SCRAM, proof.final(await challenged(client))))
        await client.packet()
    await noted(folder, action="AUTH", user="alice", client="s", allowed=True)
    await noted(folder, action="AUTH", user="alice", client="s", allowed=False)
    await access(node).update_user(pb.UpdateUserRequest(name="alice", disabled=True), NODE_USER)
    await scram(node.ports.mqtt, b"alice", b"wonderland", b"d")
    assert (await noted(folder, client="d"))["user"] == "alice"


async def test_services_are_in_the_audit_log(node: Node, tmp_path: Path) -> None:
    folder, where = tmp_path / "audit", f"127.0.0.1:{node.ports.grpc}"
    async with Client(where, retry_seconds=0, credentials=Credentials("alice", "wonderland")) as alice:
        await alice.send("home/x", b"x")
        await alice.send("home/x", b"x")  # known by now
        with pytest.raises(InvalidArgument):
            await alice.send("away/x", b"x")
        with pytest.raises(NotAllowed):
            await alice.partitions("away")
    async with Client(where, retry_seconds=0, credentials=Credentials("alice", "guess")) as wrong:
        with pytest.raises(Unauthenticated):
            await wrong.partitions("home")
    event = await noted(folder, event=AUTHENTICATION, action="grpc", allowed=True)
    assert (event["user"], event["source"]) == ("alice", "127.0.0.1")
    assert (await noted(folder, event=AUTHENTICATION, action="grpc", allowed=False))["user"] == "alice"
    assert (await noted(folder, action="PUB"))["resource"] == "topic:away/x"
    event = await noted(folder, action="Partitions")
    assert (event["resource"], event["user"]) == ("topic:away", "alice")
    metadata = (("authorization", Credentials("alice", "wonderland").header()), ("x-mq-client-id", "shop"))
    async with grpc.aio.insecure_channel(where) as channel:
        sends = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage", rocket.SendMessageRequest.SerializeToString
        )
        message = rocket.Message(topic=rocket.Resource(name="shut"), body=b"x")
        message.system_properties.message_id, message.system_properties.message_type = "01", rocket.NORMAL
        await sends(rocket.SendMessageRequest(messages=[message]), metadata=metadata)
    assert (await noted(folder, action="PUB", resource="topic:shut"))["user"] == "alice"


async def test_administration_is_in_the_audit_log(node: Node, tmp_path: Path) -> None:
    world, folder = World(node), tmp_path / "audit"
    await set_rules(node, OPERATOR, "allow CREATE,LIST cluster:access", "allow LIST cluster:audit")
    request = pb.CreateUserRequest(name="new", password="a new secret")
    await world.over_http(BY_NAME["CreateUser"], request)
    with pytest.raises(Refused):
        await world.over_http(BY_NAME["SetRules"], pb.SetRulesRequest(user="new", rules=["allow both #"]))
    await world.over_http(BY_NAME["ListUsers"], pb.ListUsersRequest())  # a look leaves no trace
    event = await noted(folder, action="Access.CreateUser")
    assert (event["event"], event["allowed"], event["user"]) == (ADMINISTRATION, True, OPERATOR)
    assert (event["source"], event["resource"]) == ("127.0.0.1", "'access' 'new'")
    event = await noted(folder, action="Access.SetRules")
    assert not event["allowed"]
    assert "the right to UPDATE cluster:access" in str(event["why"])
    reply = await world.over_http(BY_NAME["ListAudit"], pb.ListAuditRequest(event=ADMINISTRATION))
    assert isinstance(reply, pb.ListAuditReply)
    assert [each.action for each in reply.events] == ["Access.CreateUser", "Access.SetRules"]
    reply = await world.over_http(BY_NAME["ListAudit"], pb.ListAuditRequest(user=OPERATOR, denied=True))
    assert isinstance(reply, pb.ListAuditReply)
    assert [each.action for each in reply.events] == ["Access.SetRules"]
    assert "a new secret" not in "".join(path.read_text() for path in folder.iterdir())


async def http(port: int, head: bytes, body: bytes = b"") -> bytes:
    """The answer to one request, whose headers may be no UTF-8."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"host: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    return answer


async def test_headers_that_are_no_utf_8_do_not_evade_it(node: Node, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    forged = b"GET /metrics HTTP/1.1\r\nauthorization: MQv2-HMAC-SHA1 Credential=k\xff\r\n"
    assert b" 401 " in (await http(node.ports.http, forged)).partition(b"\r\n")[0]
    assert not (await noted(folder, user="k\\udcff"))["allowed"]
    await set_rules(node, OPERATOR, "allow * cluster:*")
    header = b"authorization: " + Credentials(OPERATOR, PASSWORD).header().encode()
    head = b"POST /api/v1/users HTTP/1.1\r\ncontent-type: application/json\r\nx-request-id: \xff\r\n" + header + b"\r\n"
    answer = await http(node.ports.http, head, b'{"name": "new", "password": "a new secret"}')
    assert b" 200 " in answer.partition(b"\r\n")[0]
    assert (await noted(folder, action="Access.CreateUser"))["request"] == "\\udcff"


async def test_a_flood_of_texts_that_are_no_utf_8_does_not_end_it(tmp_path: Path) -> None:
    audit = AuditLog(AuditConfig(str(tmp_path), max_rate=1), "node")
    for _ in range(3):
        audit.note(DENIED._replace(user="\udcff"))
    await audit.stop()
    assert [(each["user"], each.get("count")) for each in lines(tmp_path)] == [("\\udcff", None), ("\\udcff", 2)]


async def test_a_client_id_forges_no_line_on_a_terminal(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await login(node.ports.mqtt, b"mallory", b"guess", 5, b"m\nforged \x1b[2J")
    await noted(tmp_path / "audit", user="mallory")
    assert await asyncio.to_thread(main, ["audit", "list", "--data-dir", str(node.config.data_dir)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "denied mallory (m\\nforged \\x1b[2J) from 127.0.0.1" in line


async def test_a_flood_is_summed(tmp_path: Path) -> None:
    audit = AuditLog(AuditConfig(str(tmp_path), max_rate=10), "node")
    for number in range(5000):
        audit.note(DENIED._replace(resource=f"topic:{number}", client=f"c{number}", source=f"192.0.2.{number % 4}"))
    await audit.stop()
    found = lines(tmp_path)
    single = [each for each in found if "count" not in each]
    summed = [each for each in found if "count" in each]
    assert 10 <= len(single) < 1000
    assert len(summed) == 4
    assert len(single) + sum(int(str(each["count"])) for each in summed) == 5000
    assert {(each["user"], each["action"]) for each in summed} == {("alice", "PUB")}
    assert all("resource" not in each for each in summed)


async def test_a_flood_of_denials_hides_nothing_else(tmp_path: Path) -> None:
    audit = AuditLog(AuditConfig(str(tmp_path), max_rate=1), "node")
    for _ in range(100):
        audit.note(DENIED)
        audit.note(DENIED._replace(event=ADMINISTRATION))
    changed = Event(ADMINISTRATION, True, "Access.SetRules", "'access' 'mallory'", "admin")
    audit.note(changed)
    audit.note(Event(AUTHENTICATION, True, "CONNECT", user="mallory", client="m"))
    await audit.stop()
    found = [(each["user"], each.get("resource"), each.get("client")) for each in lines(tmp_path) if each["allowed"]]
    assert sorted(found) == [("admin", changed.resource, None), ("mallory", None, "m")]


async def test_sums_are_bounded_too(tmp_path: Path) -> None:
    audit = AuditLog(AuditConfig(str(tmp_path), max_rate=1), "node")
    for number in range(20_000):
        audit.note(DENIED._replace(user=f"u{number}", action=f"a{number}"))
    await audit.stop()
    found = lines(tmp_path)
    assert len(found) < 1200
    assert sum(int(str(each.get("count", 1))) for each in found) == 20_000


async def test_files_have_a_bounded_size_and_number(tmp_path: Path) -> None:
    config = AuditConfig(str(tmp_path / "a" / "b"), file_bytes=1000, files=3, max_rate=100_000)
    for _ in range(20):
        audit = AuditLog(config, "g/1")
        for number in range(10):
            audit.note(DENIED._replace(resource="x" * 10_000, request=str(number)))
        await audit.stop()
    files = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert files == ["audit-g-1.1.jsonl", "audit-g-1.2.jsonl", "audit-g-1.jsonl"]
    assert all(path.stat().st_size < 10_000 for path in (tmp_path / "a" / "b").iterdir())
    assert all(path.stat().st_mode & 0o777 == 0o640 for path in (tmp_path / "a" / "b").iterdir())
    assert all(len(str(each["resource"])) == 256 for each in lines(tmp_path / "a" / "b"))


async def test_a_disk_that_fails_is_logged_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        audit = AuditLog(AuditConfig(str(tmp_path / "file" / "x")), "node")
        for _ in range(2):
            audit.note(DENIED)
            await until(lambda: not audit._lines)
        await audit.stop()
    await asyncio.sleep(0)
    assert caplog.text.count("the audit log loses events") == 1


async def test_a_line_that_was_cut_off_costs_no_other_line(tmp_path: Path) -> None:
    (tmp_path / "audit-node.jsonl").write_text('{"time_ms":1,"us')
    audit = AuditLog(AuditConfig(str(tmp_path)), "node")
    audit.note(DENIED)
    await audit.stop()
    reply = await AuditService(str(tmp_path)).list_audit(pb.ListAuditRequest(), NODE_USER)
    assert [each.user for each in reply.events] == ["alice"]


async def test_a_disk_that_fills_up_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = AuditLog(AuditConfig(str(tmp_path), max_rate=100_000), "node")
    for _ in range(1000):
        audit.note(DENIED)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, limits[1]))
    try:
        await audit.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "audit-node.jsonl").stat().st_size == 65_536
    assert "the audit log loses events" in caplog.text


async def test_without_a_folder_there_is_none() -> None:
    audit = AuditLog(AuditConfig(), "node")
    audit.note(DENIED)
    await audit.stop()
    with pytest.raises(RequestError, match=r"audit\.folder says where"):
        await AuditService("").list_audit(pb.ListAuditRequest(), NODE_USER)


async def test_events_are_found_by_time_across_files_and_processes(tmp_path: Path) -> None:
    for process, times in (("one", (1000, 3000)), ("two", (2000, 4000))):
        texts = [
            json.dumps({"time_ms": at, "event": AUTHORIZATION, "allowed": False, "action": str(at)}) for at in times
        ]
        (tmp_path / f"audit-{process}.jsonl").write_text("cut off\n" + "\n".join(texts) + '\n{"time')
    service = AuditService(str(tmp_path))

    async def actions(**fields: object) -> list[str]:
        request = pb.ListAuditRequest(**fields)  # type: ignore[arg-type]
        return [event.action for event in (await service.list_audit(request, NODE_USER)).events]

    assert await actions() == ["1000", "2000", "3000", "4000"]
    assert await actions(limit=2) == ["3000", "4000"]
    assert await actions(since_ms=2000, until_ms=4000) == ["2000", "3000"]
    assert await actions(user="alice") == []


# --- the topic


@pytest.fixture
async def publishing(make_node: MakeNode) -> Node:
    """A node that has no files, and publishes the events."""
    made = await make_node(audit__topic=True, mqtt__auth=["password"], grpc__auth=["password"], mqtt__ws_port=-1)
    for name in ("alice", "auditor"):
        await set_user(made, name, name.encode())
    await set_rules(made, "auditor", "allow SUB topic:$audit/#")
    await set_rules(made, "alice", "deny publish away/#", "allow both #")
    return made


async def reason_of(client: RawClient, topic: bytes, payload: bytes) -> int:
    """The answer to a message of QoS 1."""
    client.send(wire.publish(5, topic, payload, 1, 1))
    return (await client.expect(PUBACK)).reason


async def test_events_are_messages_for_who_may_read_them(publishing: Node) -> None:
    port = publishing.ports.mqtt
    auditor, _ = await login(port, b"auditor", b"auditor", client_id=b"auditor")
    assert await auditor.subscribe((b"$audit/#", 1)) == b"\1"
    alice, _ = await login(port, b"alice", b"alice", client_id=b"a")
    assert await reason_of(alice, b"away/x", b"secret") == 0x87
    found: dict[str, dict[str, object]] = {}
    while not {"authorization", "authentication"} <= found.keys():
        (message,) = await auditor.take(1)
        event = json.loads(message.payload)
        if event["user"] == "alice":
            found[event["event"]] = event
            assert message.topic == b"$audit/" + str(event["event"]).encode()
            assert b"secret" not in message.payload
    assert found["authorization"].items() >= {"action": "PUB", "resource": "topic:away/x", "client": "a"}.items()
    assert found["authorization"]["rule"] == "deny publish away/#"
    assert found["authentication"].items() >= {"action": "CONNECT", "allowed": True, "process": "node"}.items()
    everything = await alice.subscribe((b"$audit/#", 1), (b"#", 1), packet_id=7)
    assert everything == b"\x87\1"
    async with Client(
        f"127.0.0.1:{publishing.ports.grpc}", credentials=Credentials("auditor", "auditor"), retry_seconds=0
    ) as service:
        read = await service.find_between("$audit", 0, 1 << 50)
        assert "alice" in {json.loads(each.payload).get("user") for each in read}
        with pytest.raises(InvalidArgument, match="may be published to"):
            await service.send("$audit/authentication", b"forged")


@pytest.mark.parametrize("sample", [0, 1])
async def test_no_default_lets_anybody_read_the_events(make_node: MakeNode, sample: int) -> None:
    node = await make_node(audit__topic=True, audit__sample=sample)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    names = (b"$audit/#", b"$audit/+", b"$audit", b"$replay/0/$audit/authentication", b"$share/g/$audit/#")
    assert await client.subscribe(*((name, 1) for name in names)) == b"\x87" * len(names)
    assert await client.subscribe((b"a/#", 1), (b"+/x", 1), (b"#", 1)) == b"\1\1\1"
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    await publisher.publish(b"home/x", b"1", 1)
    async with Client(f"127.0.0.1:{node.ports.grpc}", retry_seconds=0) as service:
        with pytest.raises(NotAllowed):
            await service.find_between("$audit", 0, 1 << 50)
        assert await service.find_between("home", 0, 1 << 50)
    asked = pb.CheckRulesRequest(action="subscribe", resource="$audit/#", by_default=True)
    verdict = await access(node).check_rules(asked, NODE_USER)
    assert not verdict.allowed and "audit" in verdict.because
    await set_rules(node, "", "allow subscribe $audit/#")
    assert await publisher.subscribe((b"$audit/#", 1)) == b"\1"
    assert (await access(node).check_rules(asked, NODE_USER)).allowed


async def test_a_super_user_reads_the_events(publishing: Node) -> None:
    await access(publishing).update_user(pb.UpdateUserRequest(name="alice", super_user=True), NODE_USER)
    alice, _ = await login(publishing.ports.mqtt, b"alice", b"alice")
    assert await alice.subscribe((b"$audit/#", 1)) == b"\1"


@pytest.mark.parametrize("topic", [b"$audit", b"$audit/x", b"$delayed/1/$audit/x"])
async def test_nobody_writes_events(publishing: Node, topic: bytes) -> None:
    await access(publishing).update_user(pb.UpdateUserRequest(name="alice", super_user=True), NODE_USER)
    alice, _ = await login(publishing.ports.mqtt, b"alice", b"alice")
    assert await reason_of(alice, topic, b"x") == 0x87
    refused, connack = await login(publishing.ports.mqtt, b"alice", b"alice", client_id=b"w", will=(topic, b"x"))
    assert connack.reason == 0x87
    await refused.closed()


async def test_reading_the_events_makes_no_more_of_them(make_node: MakeNode, tmp_path: Path) -> None:
    node = await make_node(audit__topic=True, audit__sample=1, audit__folder=str(tmp_path / "audit"))
    engine = node._engine
    assert engine is not None
    await set_rules(node, "", "allow subscribe $audit/#")
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await client.subscribe((b"$audit/#", 1), (b"home/#", 1))
    publisher = await RawClient.connect(node.ports.mqtt, b"p", 5)
    await publisher.publish(b"home/x", b"1", 1)
    seen: list[str] = []
    while seen.count("topic:home/x") < 1:
        (message,) = await client.take(1)
        if message.topic.startswith(b"$audit"):
            seen.append(json.loads(message.payload).get("resource", ""))
    assert "topic:home/#" in seen
    assert not any("$audit" in each for each in seen)
    end = engine.stats().log_end
    await asyncio.sleep(0)
    audit = node._authority.audit
    assert audit._topic is not None
    await until(lambda: not audit._lines and not audit._topic._waiting and not audit._topic._sending)
    assert engine.stats().log_end - end < 4096, "events about events"


class Appends:
    """A store that answers when it is told."""

    def __init__(self) -> None:
        self.waiting: list[tuple[list[bytes], Done]] = []

    def append(self, frames: list[bytes], done: Done) -> None:
        self.waiting.append((frames, done))

    def answer(self, error: StoreError | None = None) -> list[bytes]:
        frames, done = self.waiting.pop(0)
        done(Appended([0] * len(frames), 0, error) if error is None else Appended((), 0, error))
        return frames


async def test_one_append_is_under_way_and_what_waits_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_topic, "_MAX_WAITING", 5)
    monkeypatch.setattr(audit_topic, "_AT_ONCE", 3)
    store = Appends()
    topic = AuditTopic(store)  # type: ignore[arg-type]
    for number in range(4):
        topic.add("authentication", b"%d" % number)
    topic.flush()
    topic.flush()
    assert [len(frames) for frames, _ in store.waiting] == [3]
    for number in range(4, 10):
        topic.add("authentication", b"%d" % number)
    assert "lose events" in caplog.text
    first = store.answer(StoreBusy("later"))
    topic.flush()
    assert store.answer() == first, "a busy store gets them again"
    topic.flush()
    assert [record.decode(frame, 0)[-1] for frame in store.answer()] == [b"3", b"4", b"5"]
    topic.flush()
    store.answer(StoreClosed("gone"))
    await topic.stop()
    assert not store.waiting


async def test_the_events_of_gateways_are_in_the_one_log(tmp_path: Path) -> None:
    several = await Several(tmp_path / "data", far=True, audit__topic=True).open()
    try:
        await several.join("a", "b")
        rule = Rule(True, int(Action.SUB), int(Resource.TOPIC), b"$audit/#")
        await append(several.engine, [control.RulesSet((rule,)).frame(b"")])
        for gateway in ("a", "b"):
            await RawClient.connect(several.ports[gateway], b"c-" + gateway.encode(), 5)
        reader = await RawClient.connect(several.ports["a"], b"reader", 5)
        await reader.subscribe((b"$replay/0/$audit/authentication", 1))
        clients: set[str] = set()
        while not {"c-a", "c-b"} <= clients:
            (message,) = await reader.take(1)
            clients.add(json.loads(message.payload)["client"])
    finally:
        await several.close()


# --- samples of what is allowed


async def test_reading_the_events_over_http_makes_no_more_of_them(make_node: MakeNode) -> None:
    node = await make_node(audit__topic=True, audit__sample=1, http__auth=["password"])
    await set_user(node, "alice", b"alice")
    await set_rules(node, "alice", "allow * topic:$audit/#", "allow * topic:#", "allow * group:*")
    world, receive = World(node), BY_NAME["ReceiveMessages"]
    noted: list[Event] = []
    node._authority.audit.note = noted.append  # type: ignore[method-assign]
    for parent in ("$audit", "home"):
        asked = receive.request(group=f"of-{parent}", parent=parent)
        await world.over_http(receive, asked, "alice", "alice")
    found = [each.resource for each in noted if each.event == AUTHORIZATION]
    assert any("home" in each for each in found)
    assert not any("$audit" in each for each in found)


async def test_allowed_messages_and_subscriptions_are_sampled(make_node: MakeNode, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    node = await make_node(
        audit__folder=str(folder),
        audit__sample=1,
        mqtt__auth=["password"],
        grpc__auth=["password"],
        http__auth=["password"],
    )
    await set_user(node, "alice", b"alice")
    await set_rules(node, "alice", "allow both home/#", "allow SUB group:g")
    alice, _ = await login(node.ports.mqtt, b"alice", b"alice", client_id=b"a")
    await alice.publish(b"home/x", b"secret", 1)
    await alice.subscribe((b"home/+", 1))
    seen = await noted(folder, event="authorization", action="PUB", resource="topic:home/x")
    who = {"user": "alice", "client": "a", "source": "127.0.0.1"}
    assert seen.items() >= {"allowed": True, "sample": 1, **who}.items()
    assert seen["rule"] == "allow both home/#"
    assert (await noted(folder, action="SUB", resource="topic:home/+"))["rule"] == "allow both home/#"
    credentials = Credentials("alice", "alice")
    async with Client(f"127.0.0.1:{node.ports.grpc}", credentials=credentials, retry_seconds=0) as service:
        await service.send("home/y", b"secret")
        await noted(folder, action="PUB", resource="topic:home/y", user="alice", allowed=True)
        await service.partitions("home")
        wanted = {"action": "SUB", "resource": "topic:home/#", "user": "alice", "allowed": True}
        await until(lambda: any(wanted.items() <= each.items() for each in lines(folder)))
    assert "secret" not in "".join(path.read_text() for path in folder.iterdir())
    reply = await AuditService(str(folder)).list_audit(pb.ListAuditRequest(event="authorization"), NODE_USER)
    assert {event.sample for event in reply.events} == {1}


async def test_without_sampling_nothing_is_put_in_the_way(make_node: MakeNode, tmp_path: Path) -> None:
    node = await make_node(audit__folder=str(tmp_path / "audit"))
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    assert node._sessions.open_sessions[b"c"][1].permissions is None
    await client.publish(b"x", b"", 1)
    node._authority.audit._append(node._authority.audit._take_lines())
    assert not [each for each in lines(tmp_path / "audit") if each["event"] == "authorization"]


async def test_about_one_of_so_many_is_sampled(tmp_path: Path) -> None:
    audit = AuditLog(AuditConfig(str(tmp_path), sample=10), "node")
    total = sum(audit.is_sampled() for _ in range(20_000))
    assert 1500 < total < 2700
    await audit.stop()
