"""HTTP over TLS: the certificate and its replacement, client certificates, and the limit on connections."""

import asyncio
import ssl
from base64 import b64encode
from pathlib import Path

import aiohttp
import pytest

from gateway.net import bounded_http
from gateway.node.node import Node
from tests.gateway.authority import Authority
from tests.gateway.conftest import MakeNode
from tests.gateway.people import set_rules, set_user
from tests.waiting import patience

BASIC = {"Authorization": f"Basic {b64encode(b'scraper:secret').decode()}"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def tls(certificate: tuple[Path, Path]) -> dict[str, object]:
    return {"http__certificate": str(certificate[0]), "http__key": str(certificate[1])}


async def status(
    node: Node, path: str, context: ssl.SSLContext, headers: dict[str, str] | None = None, scheme: str = "https"
) -> int:
    """The status of a GET on a connection of its own."""
    url = f"{scheme}://127.0.0.1:{node.ports.http}{path}"
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.request("GET", url, headers=headers, connector=connector) as answer:
        await answer.read()
        return answer.status


async def test_metrics_and_health_over_tls(make_node: MakeNode, authority: Authority) -> None:
    node = await make_node(**tls(authority.issue("server", "server", "DNS:localhost")), http__auth=["password"])
    await set_user(node, "scraper", b"secret")
    await set_rules(node, "scraper", "allow subscribe $SYS/#")
    context = authority.client()
    assert await status(node, "/health", context) == 200
    assert await status(node, "/metrics", context) == 401
    assert await status(node, "/metrics", context, BASIC) == 200
    with pytest.raises(aiohttp.ClientError):
        await status(node, "/health", context, scheme="http")
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await status(node, "/health", ssl.create_default_context())


async def test_the_cookie_of_the_console_is_for_tls_alone(make_node: MakeNode, authority: Authority) -> None:
    node = await make_node(**tls(authority.issue("server", "server", "DNS:localhost")))
    await set_user(node, "alice", b"secret")
    here = f"127.0.0.1:{node.ports.http}"
    fields, headers = {"name": "alice", "password": "secret"}, {"Origin": f"http://{here}"}
    connector = aiohttp.TCPConnector(ssl=authority.client())
    url = f"https://{here}/console/login"
    asked = {"data": fields, "headers": headers, "allow_redirects": False, "connector": connector}
    async with aiohttp.request("POST", url, **asked) as answer:  # type: ignore[arg-type]
        assert answer.status == 303
        assert answer.headers["Set-Cookie"].endswith("; Secure")


@pytest.mark.parametrize("signalled", [False, True])
async def test_replaced_files_are_for_new_connections(
    make_node: MakeNode, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, signalled: bool
) -> None:
    certificate, key = authority.issue("server", "server", "DNS:localhost")
    other = Authority(tmp_path / "other")
    node = await make_node(**tls((certificate, key)))
    old = certificate.read_bytes()
    certificate.write_text("no certificate")
    if signalled:
        await node.reload()
        assert "listener http goes on with its old certificates" in caplog.text
    assert await status(node, "/health", authority.client()) == 200
    certificate.write_bytes(old)
    new = other.issue("new", "server", "DNS:localhost")
    new[0].replace(certificate)
    new[1].replace(key)
    if signalled:
        await node.reload()
    assert await status(node, "/health", other.client()) == 200


async def test_the_name_of_a_certificate_is_a_user(make_node: MakeNode, authority: Authority) -> None:
    server = authority.issue("server", "server", "DNS:localhost")
    node = await make_node(**tls(server), http__client_ca=str(authority.file), http__auth=["certificate"])
    await set_rules(node, "scraper", "allow subscribe $SYS/#")
    scraper = authority.client(authority.issue("scraper", "scraper"))
    assert await status(node, "/metrics", scraper) == 200
    assert await status(node, "/metrics", authority.client(authority.issue("other", "other"))) == 403
    with pytest.raises(aiohttp.ClientError):
        await status(node, "/health", authority.client())


async def test_connections_without_a_handshake_are_limited(
    make_node: MakeNode, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silent ones are as many as HTTP serves. The next one is closed; when they are gone, others are served."""
    monkeypatch.setattr(bounded_http, "_HANDSHAKE_SECONDS", 3600.0)
    node = await make_node(**tls(authority.issue("server", "server", "DNS:localhost")))
    silent = [await asyncio.open_connection("127.0.0.1", node.ports.http) for _ in range(64)]
    reader, writer = await asyncio.open_connection("127.0.0.1", node.ports.http)
    async with patience():
        assert await reader.read() == b""
    for _, each in [*silent, (reader, writer)]:
        each.close()
    async with patience():
        while True:
            try:
                assert await status(node, "/health", authority.client()) == 200
            except aiohttp.ClientError:
                continue  # the node has not heard of all ends
            break


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_node_says_when_passwords_cross_the_network_as_they_are(
    make_node: MakeNode, authority: Authority, caplog: pytest.LogCaptureFixture, host: str, encrypted: bool
) -> None:
    settings = tls(authority.issue("server", "server", "DNS:localhost")) if encrypted else {}
    node = await make_node(http__host=host, http__auth=["password"], **settings)
    told = [record.getMessage() for record in caplog.records if "passwords" in record.getMessage()]
    is_open = host == "0.0.0.0" and not encrypted
    line = f"HTTP at {host}:{node.ports.http} accepts passwords without TLS: see http.certificate"
    assert told == ([line] if is_open else [])
