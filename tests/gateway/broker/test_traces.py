"""Live traces of single clients: over the management surface, at a node and at gateways."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.broker import traces
from gateway.broker.append import append
from gateway.broker.remote_sessions import RemoteSessions
from gateway.broker.traces import TracePart
from gateway.connection.packet_trace import PacketTrace, TraceLine
from gateway.management.areas import clients as clients_module
from gateway.management.areas.clients import ClientsService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.mqtt.packets import PingReq
from gateway.node.node import Node
from gateway.rpc.status import RequestError
from store import control
from tests.gateway.management.world import engine_of
from tests.gateway.people import login
from tests.gateway.raw import RawClient
from tests.gateway.several import Several
from tests.waiting import patience, until


def service(node: Node) -> ClientsService:
    return ClientsService(engine_of(node), node._sessions)


async def begin(clients: ClientsService, client_id: str = "c", seconds: int = 0) -> pb.Trace:
    return await clients.begin_trace(pb.BeginTraceRequest(client_id=client_id, seconds=seconds), NODE_USER)


async def read_until(clients: ClientsService, last: str, client_id: str = "c") -> list[str]:
    """The lines up to one that contains `last`. Those of packets begin with < (from the client) or >."""
    found: list[str] = []
    marks = {"client": "< ", "node": "> ", "": ""}
    async with patience():
        while not any(last in line for line in found):
            reply = await clients.read_trace(pb.ReadTraceRequest(client_id=client_id), NODE_USER)
            assert not reply.dropped
            found += [marks[packet.sender] + packet.text for packet in reply.packets]
    return found


@pytest.mark.parametrize("version", [4, 5])
async def test_the_packets_of_a_client_from_its_connect_on(node: Node, version: int) -> None:
    clients = service(node)
    trace = await begin(clients)
    assert trace.until_ms > 0
    client, _ = await login(node.ports.mqtt, b"alice", b"wonderland", version, b"c", keep_alive=60, will=(b"w", b"xy"))
    other = await RawClient.connect(node.ports.mqtt, b"other", version)
    await other.publish(b"not/traced", b"x", 1, 1)
    await client.subscribe((b"t/#", 2), packet_id=5)
    await client.publish(b"u/x", b"secret", 2, 7)
    await other.publish(b"t/x", b"secret", 2, 9)
    await client.take(1)
    await client.settle()
    await client.unsubscribe(b"t/#", packet_id=6)
    await client.disconnect()
    lines = await read_until(clients, "the connection has ended")
    text = "\n".join(lines)
    name, properties = ("5.0", 0) if version == 5 else ("3.1.1", 0)
    assert lines[0].startswith("the connection from 127.0.0.1:")
    assert f"< CONNECT of MQTT {name}, clean start, keep alive 60 s" in lines[1]
    assert "user alice, a password, will to w qos 1, 2 bytes of payload" in lines[1]
    accepted = "> CONNACK 0x00 (success), no session present" if version == 5 else "> CONNACK return code 0"
    assert lines[2].startswith(accepted), lines
    assert "< SUBSCRIBE 5 t/# qos 2" in lines
    assert "> SUBACK 5 0x02" in lines
    sizes = f"6 bytes of payload, {properties} bytes of properties"
    assert f"< PUBLISH 7 qos 2 to u/x, {sizes}" in lines
    assert any(line.startswith("> PUBREC 7 0x") for line in lines)
    assert "< PUBREL 7 0x00 (success)" in lines
    assert "> PUBCOMP 7 0x00 (success)" in lines
    assert any(line.startswith("> PUBLISH ") and line.endswith(f"qos 2 to t/x, {sizes}") for line in lines)
    assert "< UNSUBSCRIBE 6 t/#" in lines
    assert any(line.startswith("> UNSUBACK 6") for line in lines)
    assert "wonderland" not in text
    assert "secret" not in text
    assert "not/traced" not in text


async def test_a_client_that_is_connected_and_one_that_is_refused(node: Node) -> None:
    clients = service(node)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    await begin(clients)
    await client.publish(b"t", b"x", 1, 3)
    lines = await read_until(clients, "PUBACK")
    assert lines[1] == "< PUBLISH 3 qos 1 to t, 1 bytes of payload, 0 bytes of properties"
    assert lines[2].startswith("> PUBACK 3 0x")
    await append(engine_of(node), [control.BanSet().frame(b"client:refused")])
    await begin(clients, "refused")
    await login(node.ports.mqtt, b"alice", b"guess", 5, b"refused")
    refused = await read_until(clients, "the connection has ended", "refused")
    assert any(line.startswith("> CONNACK 0x8a (banned)") for line in refused)


async def test_a_trace_ends_by_its_time_and_when_nobody_reads_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = service(node)
    client = await RawClient.connect(node.ports.mqtt, b"c", 5)
    connection = node._sessions.open_sessions[b"c"][1]
    await begin(clients, seconds=1)
    assert connection.tracer is not None
    async with patience():
        while not (await clients.read_trace(pb.ReadTraceRequest(client_id="c"), NODE_USER)).over:
            pass
    await until(lambda: connection.tracer is None)
    with pytest.raises(RequestError, match="there is no such trace of 'c': it is over"):
        await clients.read_trace(pb.ReadTraceRequest(client_id="c"), NODE_USER)
    monkeypatch.setattr(traces, "UNREAD_S", 0.05)
    await begin(clients)
    await until(lambda: connection.tracer is None)
    assert not node._sessions.traces._traces
    await client.quiet()


async def test_packets_of_one_millisecond_stay_in_their_order(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = service(node)
    await begin(clients)
    lines = [TraceLine(5, "node", "CONNACK"), TraceLine(5, "client", "SUBSCRIBE"), TraceLine(5, "node", "SUBACK")]

    async def read_trace(*_: object) -> list[TracePart]:
        return [TracePart("g1", lines, 0), TracePart("g2", [TraceLine(4, "client", "CONNECT")], 0)]

    monkeypatch.setattr(clients, "_sessions", SimpleNamespace(read_trace=read_trace))
    reply = await clients.read_trace(pb.ReadTraceRequest(client_id="c"), NODE_USER)
    assert [each.text for each in reply.packets] == ["CONNECT", "CONNACK", "SUBSCRIBE", "SUBACK"]


async def test_limits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "_MAX_TRACES", 1)
    clients = service(node)
    first = await begin(clients)
    assert (await begin(clients)).trace != first.trace  # one's own is begun anew
    with pytest.raises(RequestError, match="1 clients are being traced, which is the limit"):
        await begin(clients, "d")
    with pytest.raises(RequestError, match="a trace takes at most 3600 s"):
        await begin(clients, seconds=3601)
    clients._traces[b"c"].by = "alice"
    with pytest.raises(RequestError, match="'c' is being traced by alice"):
        await begin(clients)
    with pytest.raises(RequestError, match="there is no such trace"):
        await clients.read_trace(pb.ReadTraceRequest(client_id="c", trace=first.trace), NODE_USER)


def test_what_nobody_reads_is_only_counted() -> None:
    trace = PacketTrace()
    trace.received([PingReq()] * 1200)
    trace.sent(5, b"\xd0\0" * 7)
    lines, dropped = trace.take()
    assert (len(lines), dropped) == (1000, 207)
    trace.sent(5, b"\xd0\0")
    lines, dropped = trace.take()
    assert ([(line.sender, line.text) for line in lines], dropped) == ([("node", "PINGRESP")], 0)


# --- gateways in processes of their own


@pytest.fixture
async def several(tmp_path: Path) -> AsyncIterator[Several]:
    found = await Several(tmp_path / "data", far=True).open()
    await found.join("a", "b")
    yield found
    await found.close()


async def test_a_client_that_moves_between_gateways(several: Several) -> None:
    engine = several.engine
    clients = ClientsService(engine, RemoteSessions(engine, engine.gateway_registry, several.keeping.wills))
    await begin(clients)
    first = await RawClient.connect(several.ports["a"], b"c", 5)
    await first.publish(b"t", b"x", 1, 3)
    lines = await read_until(clients, "PUBACK 3")
    second = await RawClient.connect(several.ports["b"], b"c", 5)
    lines += await read_until(clients, "CONNACK 0x00")
    assert "< PUBLISH 3 qos 1 to t, 1 bytes of payload, 0 bytes of properties" in lines
    assert any("DISCONNECT 0x8e (session taken over)" in line for line in lines)
    assert sum("CONNECT of MQTT 5.0" in line for line in lines) == 2
    await second.quiet()
