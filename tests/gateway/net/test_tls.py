"""TLS: certificates by server name and by client, read again while the node serves, and what it says of bad ones."""

import asyncio
import shutil
import ssl
from pathlib import Path

import aiohttp
import pytest

from gateway.config.config import load
from gateway.listen import mqtt_listeners as listeners
from gateway.net.tls import name_in
from gateway.node.node import Node
from gateway.node.process import run
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode
from tests.gateway.listen.test_listeners import V1, port_of
from tests.gateway.raw import CONNACK, RawClient, connect


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.issue("server", "server", "DNS:localhost")
    made.issue("other", "other", "DNS:other.example")
    made.issue("device", "device-7", "URI:urn:device:7", "DNS:device.example")
    made.issue("nameless", "")
    return made


def pair(authority: Authority, name: str) -> tuple[Path, Path]:
    return authority.folder / f"{name}.pem", authority.folder / f"{name}.key"


def certificate(files: tuple[Path, Path], *names: str) -> dict[str, object]:
    return {"file": str(files[0]), "key": str(files[1]), "names": list(names)}


def secure(authority: Authority, **settings: object) -> dict[str, object]:
    server = certificate(pair(authority, "server"))
    return {"name": "tls", "address": "127.0.0.1:0", "protocol": "mqtts", "certificates": [server], **settings}


async def open_tls(port: int, context: ssl.SSLContext, version: int = 5, name: str = "localhost") -> RawClient:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    return RawClient(version, reader, writer)


def shown(client: RawClient) -> str:
    """The common name of the certificate that the node showed."""
    found = client.writer.get_extra_info("peercert")
    return next(value for rdn in found["subject"] for kind, value in rdn if kind == "commonName")


async def admitted(client: RawClient, client_id: bytes = b"c") -> int:
    client.send(connect(5, client_id))
    return (await client.expect(CONNACK)).reason


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_connect_over_tls(make_node: MakeNode, authority: Authority, version: ssl.TLSVersion) -> None:
    node = await make_node(mqtt__listeners=[secure(authority)])
    context = authority.client()
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["x", "mqtt"])
    client = await open_tls(port_of(node, "tls"), context)
    assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "mqtt"
    assert await admitted(client) == 0
    await client.subscribe((b"t", 1))
    plain = await RawClient.connect(node.ports.mqtt, b"p")
    payload = bytes(range(256)) * 2000
    await plain.publish(b"t", payload)
    assert [m.payload for m in await client.take(1)] == [payload]
    await client.disconnect()
    without = authority.client()
    assert await admitted(await open_tls(port_of(node, "tls"), without)) == 0


async def test_older_versions_are_refused(make_node: MakeNode, authority: Authority) -> None:
    node = await make_node(mqtt__listeners=[secure(authority)])
    context = authority.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1 is"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await open_tls(port_of(node, "tls"), context)
    assert node._devices.listeners._listeners[-1].certificates.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert _admission(node).refused_tls == 1
    assert _admission(node).opening == 0


async def test_a_handshake_has_to_come_in_time(make_node: MakeNode, authority: Authority) -> None:
    node = await make_node(mqtt__listeners=[secure(authority, connect_timeout=1)])
    silent = await RawClient.open(port_of(node, "tls"))
    silent.send(b"\x16\x03\x01")
    with pytest.raises((ConnectionError, EOFError)):
        await silent.packet()
    assert _admission(node).opening == 0


def _admission(node: Node, name: str = "tls") -> object:
    (admission,) = [admission for admission in node._front.admissions if admission.name == name]
    return admission


async def test_the_certificate_is_that_of_the_server_name(make_node: MakeNode, authority: Authority) -> None:
    certificates = [
        certificate(pair(authority, "server")),
        certificate(pair(authority, "other"), "other.example", "*.wild.example"),
    ]
    node = await make_node(mqtt__listeners=[secure(authority, certificates=certificates)])
    for name, common_name in (
        ("localhost", "server"),
        ("other.example", "other"),
        ("OTHER.example", "other"),
        ("a.wild.example", "other"),
        ("a.b.wild.example", "server"),
        ("unknown.example", "server"),
    ):
        client = await open_tls(port_of(node, "tls"), authority.client(), name=name)
        assert shown(client) == common_name, name
        assert await admitted(client) == 0


@pytest.mark.parametrize(("source", "device"), [("cn", b"device-7"), ("san", b"urn:device:7")])
@pytest.mark.mqtt5("3.1.3-8", "3.2.2-16")
async def test_the_client_id_of_the_certificate(
    make_node: MakeNode, authority: Authority, source: str, device: bytes
) -> None:
    settings = {
        "client_ca": str(authority.file),
        "client_certificate": "required",
        "client_id_from": source,
        "user_name_from": "cn",
    }
    node = await make_node(mqtt__listeners=[secure(authority, **settings)])
    context = authority.client(pair(authority, "device"))
    client = await open_tls(port_of(node, "tls"), context)
    assert await admitted(client, b"") == 0
    held = node._sessions.open_sessions[device][1]
    assert held.info is not None
    assert held.info.user_name == b"device-7"
    same = await open_tls(port_of(node, "tls"), context)
    assert await admitted(same, device) == 0
    other = await open_tls(port_of(node, "tls"), context)
    assert await admitted(other, b"somebody else") == 0x85
    await other.closed()
    nameless = await open_tls(port_of(node, "tls"), authority.client(pair(authority, "nameless")))
    assert await admitted(nameless, b"") == 0x87


async def test_a_client_certificate_may_be_required_or_offered(
    make_node: MakeNode, authority: Authority, tmp_path: Path
) -> None:
    known = {"client_ca": str(authority.file), "client_id_from": "cn"}
    node = await make_node(
        mqtt__listeners=[
            secure(authority, client_certificate="required", **known),
            secure(authority, name="offered", client_certificate="optional", **known),
        ]
    )
    stranger = Authority(tmp_path, "stranger").issue("device", "device-7")
    with_certificate, without = authority.client(pair(authority, "device")), authority.client()
    wrong = authority.client(stranger)
    for context in (without, wrong):
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):  # TLS 1.3 says so with the first bytes read
            await admitted(await open_tls(port_of(node, "tls"), context))
    with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
        await admitted(await open_tls(port_of(node, "offered"), wrong))
    assert await admitted(await open_tls(port_of(node, "offered"), without), b"free") == 0
    assert await admitted(await open_tls(port_of(node, "offered"), with_certificate), b"device-7") == 0


@pytest.mark.parametrize("by", ["signal", "watch"])
async def test_new_certificates_are_shown_and_connections_stay(
    make_node: MakeNode, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(listeners, "CHECK_SECONDS", 0.01 if by == "watch" else 1000.0)
    files = tmp_path / "c.pem", tmp_path / "c.key"

    def put(name: str) -> None:
        for source, target in zip(pair(authority, name), files, strict=True):
            shutil.copy(source, f"{target}.new")
            Path(f"{target}.new").replace(target)

    put("server")
    node = await make_node(mqtt__listeners=[secure(authority, certificates=[certificate(files)])])
    port = port_of(node, "tls")
    old = await open_tls(port, authority.client())
    assert (await admitted(old, b"old"), shown(old)) == (0, "server")
    put("other")
    if by == "signal":
        await node.reload()
    while True:
        new = await open_tls(port, authority.client())
        if shown(new) == "other":
            break
        assert by == "watch"
    assert await admitted(new, b"new") == 0
    await old.quiet()
    files[1].write_text("no key")
    if by == "signal":
        await node.reload()
    last = await open_tls(port, authority.client())
    assert (await admitted(last), shown(last)) == (0, "other")


async def test_an_invalid_certificate_file_is_logged_once(
    make_node: MakeNode, authority: Authority, tmp_path: Path, caplog
) -> None:
    files = tmp_path / "c.pem", tmp_path / "c.key"
    for source, target in zip(pair(authority, "server"), files, strict=True):
        shutil.copy(source, target)
    node = await make_node(mqtt__listeners=[secure(authority, certificates=[certificate(files)])])
    shutil.copy(pair(authority, "other")[1], files[1])
    for _ in range(3):
        await node._devices.listeners.reload(forced=False)
    files[0].unlink()
    for _ in range(3):
        await node._devices.listeners.reload(forced=False)
    told = [record.message for record in caplog.records if "old certificates" in record.message]
    goes_on = "listener tls goes on with its old certificates"
    assert told == [
        f"{goes_on}: the key {files[1]} does not belong to the certificate {files[0]}",
        f"{goes_on}: cannot read {files[0]}: No such file or directory",
    ]


async def test_websocket_over_tls_and_a_proxy_before_tls(make_node: MakeNode, authority: Authority) -> None:
    node = await make_node(
        mqtt__listeners=[
            secure(authority, name="web", protocol="wss"),
            secure(authority, proxy_protocol=True, trusted_proxies=["127.0.0.1"]),
        ]
    )
    url = f"https://127.0.0.1:{port_of(node, 'web')}/mqtt"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=("mqtt",), ssl=authority.client()) as peer,
    ):
        await peer.send_bytes(connect(5, b"web"))
        assert (await peer.receive_bytes())[0] == 0x20
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(node, "tls"))
    writer.write(V1)
    await writer.start_tls(authority.client(), server_hostname="localhost")
    client = RawClient(5, reader, writer)
    assert await admitted(client, b"proxied") == 0
    assert node._sessions.open_sessions[b"proxied"][1].peer() == "192.0.2.7:4711"


@pytest.mark.parametrize("what", ["missing", "mismatch", "garbage", "password", "authority"])
def test_unusable_tls_files_are_named_at_the_start(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    file, key = pair(authority, "server")
    settings: dict[str, object] = {}
    bad = tmp_path / "bad"
    bad.write_text("garbage")
    says = str(bad)
    if what == "missing":
        says = f"cannot read {tmp_path / 'none'}: No such file"
        key = tmp_path / "none"
    elif what == "mismatch":
        key = pair(authority, "other")[1]
        says = f"the key {key} does not belong to the certificate {file}"
    elif what == "garbage":
        key = bad
    elif what == "password":
        authority._openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:x", "-out", str(bad))
        key = bad
        says = "the key has a password"
    else:
        settings = {"client_ca": str(bad), "client_certificate": "required"}
    free = dict.fromkeys(("mqtt.port", "mqtt.ws_port", "grpc.port", "http.port"), 0)
    listener = secure(authority, certificates=[certificate((file, key))], **settings)
    config = load(None, {**free, "data_dir": tmp_path / "data", "mqtt.listeners": [listener]}, {})
    assert run(config) == 1
    told = capsys.readouterr().err
    assert "sluice: cannot serve: " in told
    assert says in told
    assert "Traceback" not in told


def test_the_user_name_is_read_from_a_certificate() -> None:
    found = {
        "subject": ((("organizationName", "o"),), (("commonName", "a"),), (("commonName", "b"),)),
        "subjectAltName": (("IP Address", "1.2.3.4"), ("email", "a@b"), ("DNS", "d")),
    }
    assert name_in(found, "cn") == b"a"
    assert name_in(found, "san") == b"a@b"
    assert name_in({}, "cn") is None
    assert name_in({"subject": ((("commonName", "a\0b"),),)}, "cn") is None
