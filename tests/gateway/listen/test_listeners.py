"""Many listeners, each with its own address, protocol and limits; and what a proxy tells of its clients."""

import asyncio
import socket
import stat
from pathlib import Path

import aiohttp
import pytest

from gateway.config.config import ConfigError, load
from gateway.config.listeners import parse_address
from gateway.net.bind import bind, release
from gateway.node.node import Node
from gateway.node.process import run
from tests.gateway.conftest import MakeNode
from tests.gateway.mqtt import wire
from tests.gateway.raw import CONNACK, DISCONNECT, RawClient, connect


def port_of(node: Node, name: str) -> int:
    return int(node.ports.addresses[name].rpartition(":")[2])


async def unix_client(path: Path, version: int = 5) -> RawClient:
    reader, writer = await asyncio.open_unix_connection(path)
    return RawClient(version, reader, writer)


async def test_listeners_have_own_addresses_and_share_the_node(make_node: MakeNode, tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    node = await make_node(
        mqtt__listeners=[
            {"name": "local", "address": f"unix:{path}", "mode": "660"},
            {"name": "second", "address": "127.0.0.1:0", "max_packet_size": 5000},
            {"name": "web", "address": "localhost:0", "protocol": "ws"},
        ]
    )
    assert list(node.ports.addresses) == ["local", "second", "web"]
    assert node.ports.addresses["local"] == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    here = await RawClient.connect(node.ports.mqtt, b"here", 5)
    there = await RawClient.connect(port_of(node, "second"), b"there", 5)
    assert b"\x27" + wire.u32(5000) in there.connack.body
    local = await unix_client(path)
    local.send(connect(5, b"local"))
    assert (await local.expect(CONNACK)).reason == 0
    await here.subscribe((b"t", 1))
    await there.publish(b"t", b"from another port")
    await local.publish(b"t", b"from this machine")
    assert [m.payload for m in await here.take(2)] == [b"from another port", b"from this machine"]
    there.send(wire.publish(5, b"t", b"x" * 5000, 1))
    assert (await there.expect(DISCONNECT)).reason == 0x95
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://{node.ports.addresses['web']}/mqtt", protocols=("mqtt",)) as peer,
    ):
        await peer.send_bytes(connect(5, b"web"))
        assert (await peer.receive_bytes())[0] == 0x20
    await node.stop()
    assert not path.exists()


async def test_clients_connect_over_ipv6(make_node: MakeNode) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    node = await make_node(mqtt__listeners=[{"name": "six", "address": "[::1]:0"}])
    assert node.ports.addresses["six"].startswith("[::1]:")
    reader, writer = await asyncio.open_connection("::1", port_of(node, "six"))
    client = RawClient(5, reader, writer)
    client.send(connect(5, b"c"))
    assert (await client.expect(CONNACK)).reason == 0
    assert node._sessions.open_sessions[b"c"][1].peer().startswith("[::1]:")


async def test_the_usual_two_can_be_left_out(make_node: MakeNode) -> None:
    node = await make_node(
        mqtt__port=-1, mqtt__ws_port=-1, mqtt__listeners=[{"name": "only", "address": "127.0.0.1:0"}]
    )
    assert (node.ports.mqtt, node.ports.ws) == (-1, -1)
    await RawClient.connect(port_of(node, "only"), b"c")


async def test_a_path_that_a_dead_node_left_is_taken_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    (listening,), _ = await bind(f"unix:{path}")
    with pytest.raises(OSError, match=f"cannot listen on unix:{path}: Address already in use"):
        await bind(f"unix:{path}")
    release(listening)
    assert not path.exists()
    path.write_text("a file of somebody")
    with pytest.raises(OSError, match=f"unix:{path}"):
        await bind(f"unix:{path}")
    assert path.read_text() == "a file of somebody"


async def test_a_socket_that_another_took_over_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    (old,), _ = await bind(f"unix:{path}")
    path.unlink()
    (new,), _ = await bind(f"unix:{path}")
    release(old)
    assert path.is_socket()
    release(new)
    assert not path.exists()


def test_addresses() -> None:
    assert parse_address("0.0.0.0:1883") == ("0.0.0.0", 1883)
    assert parse_address("[::]:8883") == ("::", 8883)
    assert parse_address("unix:/run/s") == ("/run/s", -1)
    for text in ("", "1883", ":1883", "host", "host:", "host:x", "host:65536", "::1:1883", "unix:", "host:-1"):
        with pytest.raises(ValueError, match=r"address|host:port|path"):
            parse_address(text)


TLS = "{ file = 'a', key = 'b' }"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("adress = 'h:1'", r"unknown setting 'adress' in mqtt.listeners\[0\] in .*did you mean 'address'"),
        ("address = '1883'", r"mqtt.listeners\[0\].address"),
        ("address = 'h:1'\nname = 'a b'", "name must be"),
        ("address = 'h:1'\nname = 'mqtt'", "is used twice"),
        ("address = 'h:1'\nprotocol = 'tls'", 'protocol is "mqtt", "mqtts", "ws" or "wss"'),
        ("address = 'h:1'\nprotocol = 'mqtts'", "certificates are needed"),
        (f"address = 'h:1'\ncertificates = [{TLS}]", "certificates are needed"),
        ("address = 'h:1'\nprotocol = 'wss'\ncertificates = [{ file = 'a' }]", "a file and a key"),
        (f"address = 'h:1'\nprotocol = 'wss'\ncertificates = [{TLS}, {TLS}]", "need names"),
        ("certificates = [{ fil = 'a' }]", "did you mean 'file'"),
        ("certificates = 'a'", "must be a list"),
        ("address = 'h:1'\nclient_ca = 'a'", "must be given together"),
        ("address = 'h:1'\nclient_id_from = 'cn'", "needs client_certificate"),
        ("address = 'h:1'\nclient_id_from = 'ou'", '"cn" or "san"'),
        ("address = 'h:1'\nclient_certificate = 'yes'", "client_certificate is"),
        ("address = 'h:1'\nproxy_protocol = true", "trusted_proxies must name"),
        ("address = 'h:1'\nproxy_protocol = 2", "must be true or false"),
        ("address = 'h:1'\ntrusted_proxies = ['10.0.0.0/8']", "no meaning"),
        ("address = 'h:1'\nproxy_protocol = true\ntrusted_proxies = ['10.0.0.0.0']", "trusted_proxies: '10"),
        ("address = 'h:1'\nmode = '9'", "mode"),
        (
            "address = 'unix:/s'\nmode = '-1'",
            "mode has the permissions of a Unix socket, octal from 0 to 777, not '-1'",
        ),
        (
            "address = 'unix:/s'\nmode = '1777'",
            "mode has the permissions of a Unix socket, octal from 0 to 777, not '1777'",
        ),
        ("address = 'h:1'\nconnect_rate = -1", "connect_rate must be"),
        ("address = 'h:1'\nmax_packet_size = 100", "max_packet_size must be between"),
    ],
)
def test_a_mistake_in_a_listener_is_named(tmp_path: Path, table: str, says: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[[mqtt.listeners]]\nname = 'l'\n{table}\n")
    if "name = 'a b'" in table or "name = 'mqtt'" in table:
        path.write_text(f"[[mqtt.listeners]]\n{table}\n")
    with pytest.raises(ConfigError, match=says):
        load(path, None, {})


def test_listeners_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "[[mqtt.listeners]]\nname = 'a'\naddress = '[::]:8883'\nprotocol = 'mqtts'\n"
        "certificates = [{ file = 'c.pem', key = 'c.key' }, { file = 'd.pem', key = 'd.key', names = ['d.x'] }]\n"
        "[[mqtt.listeners]]\nname = 'b'\naddress = 'h:1'\nproxy_protocol = true\ntrusted_proxies = ['10.0.0.1']\n"
    )
    first, second = load(path, None, {}).mqtt.listeners
    assert first.certificates[1].names == ["d.x"]
    assert (second.proxy_protocol, second.trusted_proxies) == (True, ["10.0.0.1"])
    (only,) = load(path, None, {"SLUICE_MQTT_LISTENERS": '[{"name": "e", "address": "h:2"}]'}).mqtt.listeners
    assert (only.name, only.address) == ("e", "h:2")


def test_the_address_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = dict.fromkeys(("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port"), 0)
        listeners = [{"name": "x", "address": address}]
        config = load(None, {**free, "data_dir": tmp_path / "data", "mqtt.listeners": listeners}, {})
        assert run(config) == 1
    assert f"sluice: cannot serve: cannot listen on {address}" in capsys.readouterr().err


def test_a_host_that_is_none_of_this_machine_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not what happens to listen first."""
    free = dict.fromkeys(("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port"), 0)
    config = load(None, {**free, "data_dir": tmp_path / "data", "host": "192.0.2.1"}, {})
    assert run(config) == 1
    assert "sluice: cannot serve: host is '192.0.2.1': cannot listen on 192.0.2.1:0: " in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


# --- PROXY protocol


def proxied(**settings: object) -> dict[str, object]:
    return {
        "name": "proxied",
        "address": "127.0.0.1:0",
        "proxy_protocol": True,
        "trusted_proxies": ["127.0.0.0/8"],
        **settings,
    }


V1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 1883\r\n"
V2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x10\xc0\x00\x02\x07\xc0\x00\x02\x01\x12\x67\x07\x5b\x04\x00\x01\x00"
LOCAL = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00"


@pytest.mark.parametrize(
    ("header", "peer"),
    [(V1, "192.0.2.7:4711"), (V2, "192.0.2.7:4711"), (LOCAL, "127.0.0.1:"), (b"PROXY UNKNOWN\r\n", "127.0.0.1:")],
)
async def test_the_peer_is_the_client_that_the_proxy_names(make_node: MakeNode, header: bytes, peer: str) -> None:
    """Whatever pieces the header comes in, and with the client's first bytes behind it."""
    node = await make_node(mqtt__listeners=[proxied()])
    for number, size in enumerate((1, 7, 1000)):
        client = await RawClient.open(port_of(node, "proxied"))
        data = header + connect(4, b"c%d" % number)
        for at in range(0, len(data), size):
            client.send(data[at : at + size])
            await asyncio.sleep(0)
        assert (await client.expect(CONNACK)).body == b"\0\0"
        assert node._sessions.open_sessions[b"c%d" % number][1].peer().startswith(peer)
        await client.publish(b"t", b"x")


@pytest.mark.parametrize("protocol", ["ws"])
async def test_a_websocket_behind_a_proxy_has_the_address_of_the_client(make_node: MakeNode, protocol: str) -> None:
    node = await make_node(mqtt__listeners=[proxied(protocol=protocol)])
    client = await RawClient.open(port_of(node, "proxied"))
    packet = connect(4, b"c")
    client.send(
        V1,
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n",
    )
    await client.reader.readuntil(b"\r\n\r\n")
    client.send(bytes((0x82, 0x80 | len(packet), 0, 0, 0, 0)) + packet)
    assert await client.reader.readexactly(6) == b"\x82\x04\x20\x02\0\0"
    assert node._sessions.open_sessions[b"c"][1].peer() == "192.0.2.7:4711"


@pytest.mark.parametrize("first", [connect(4, b"c"), b"PROXY TCP4 1.2.3.4\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\0\0\0"])
async def test_connections_without_a_proxy_header_are_closed(make_node: MakeNode, first: bytes) -> None:
    node = await make_node(mqtt__listeners=[proxied()])
    client = await RawClient.open(port_of(node, "proxied"))
    client.send(first)
    with pytest.raises((ConnectionError, EOFError)):
        await client.packet()
    (admission,) = [admission for admission in node._front.admissions if admission.name == "proxied"]
    assert (admission.refused_proxy, admission.opening, admission.open) == (1, 0, 0)


async def test_a_header_that_does_not_come_and_one_that_is_not_trusted(make_node: MakeNode) -> None:
    stranger = proxied(name="stranger", trusted_proxies=["192.0.2.0/24", "::1"])
    node = await make_node(mqtt__listeners=[proxied(connect_timeout=1), stranger])
    late = await RawClient.open(port_of(node, "proxied"))
    late.send(V1[:-1])
    refused = await RawClient.open(port_of(node, "stranger"))
    refused.send(V1 + connect(4, b"c"))
    for client in (refused, late):
        with pytest.raises((ConnectionError, EOFError)):
            await client.packet()
    admissions = {admission.name: admission for admission in node._front.admissions}
    assert [
        admissions["stranger"].refused_proxy,
        admissions["proxied"].refused_proxy,
        admissions["proxied"].refused_late,
    ] == [1, 1, 1]


async def test_a_proxy_on_a_unix_socket_is_trusted_by_its_permissions(make_node: MakeNode, tmp_path: Path) -> None:
    path = tmp_path / "p"
    node = await make_node(mqtt__listeners=[proxied(address=f"unix:{path}", trusted_proxies=[])])
    client = await unix_client(path, 4)
    client.send(V1 + connect(4, b"c"))
    assert (await client.expect(CONNACK)).body == b"\0\0"
    assert node._sessions.open_sessions[b"c"][1].peer() == "192.0.2.7:4711"
    plain = await unix_client(path, 4)
    await node.stop()
    with pytest.raises((ConnectionError, EOFError)):
        await plain.packet()
