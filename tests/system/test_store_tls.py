"""A store over TCP with certificates: who has none of its authority is not served, and both sides are told why."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config.config import Config, load
from gateway.net.tls import TlsError
from gateway.node.gateway_node import GatewayNode
from gateway.node.store_node import StoreNode
from store.errors import StoreClosed
from tests.gateway.authority import Authority
from tests.gateway.raw import RawClient
from tests.loops import on_each_loop, on_uvloop
from tests.waiting import patience, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    authority.issue("store", "store", "DNS:localhost", "IP:127.0.0.1")
    authority.issue("elsewhere", "elsewhere", "DNS:store.example")
    authority.issue("gateway", "g1")
    return authority


def tls(authority: Authority, name: str, ca: Path | None = None) -> dict[str, object]:
    own = {"certificate": authority.folder / f"{name}.pem", "key": authority.folder / f"{name}.key"}
    return {f"split.{key}": str(path) for key, path in {**own, "ca": ca or authority.file}.items()}


def settings(folder: Path, **given: object) -> Config:
    free = {"mqtt.port": 0, "mqtt.ws_port": -1, "http.port": 0, "grpc.port": 0}
    small = {"data_dir": folder, "store.segment_size": 4 << 20, "split.grace_s": 2}
    return load(None, {**free, **small, **{key.replace("__", "."): value for key, value in given.items()}}, {})


@asynccontextmanager
async def store(folder: Path, own: dict[str, object]) -> AsyncIterator[str]:
    node = StoreNode(settings(folder, **own, split__role="store", split__listen="127.0.0.1:0"))
    ports = await node.start()
    try:
        yield ports.addresses["store"]
    finally:
        await node.stop()


def gateway(folder: Path, address: str, own: dict[str, object]) -> GatewayNode:
    return GatewayNode(settings(folder, **own, split__role="gateway", split__store=address))


async def serves(node: GatewayNode) -> None:
    client = await RawClient.connect((await node.start()).mqtt, b"c", 5)
    await client.publish(b"t", b"x", 1, 1)
    await client.disconnect()
    await node.stop()


@on_each_loop
async def test_a_gateway_with_a_certificate_is_served(tmp_path: Path, authority: Authority) -> None:
    async with store(tmp_path / "data", tls(authority, "store")) as address:
        await serves(gateway(tmp_path, address, tls(authority, "gateway")))
        await serves(gateway(tmp_path, address.replace("127.0.0.1", "localhost"), tls(authority, "gateway")))


@on_uvloop
@pytest.mark.parametrize("case", ["plain", "foreign", "not_the_store", "store_without"])
async def test_a_peer_without_a_valid_certificate_gets_nothing(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    other = Authority(tmp_path / "other", "authority")  # of the same name
    other.issue("gateway", "g1")
    own: dict[str, object] = {
        "plain": {},
        "foreign": tls(other, "gateway", ca=authority.file),
        "not_the_store": tls(authority, "gateway"),
        "store_without": tls(authority, "gateway"),
    }[case]
    shown = {"not_the_store": tls(authority, "elsewhere"), "store_without": {}}.get(case, tls(authority, "store"))
    async with store(tmp_path / "data", shown) as address:
        node = gateway(tmp_path, address, own)
        with pytest.raises(StoreClosed, match=r"cannot be reached in 2 s: .*\w+"):
            await node.start()
        await node.stop()
    reason = {"foreign": "no TLS: .*certificate verify", "store_without": "does not speak"}.get(case, "no TLS: .*\\w+")
    expected = f"closing the connection of the peer at 127.0.0.1:\\d+: .*{reason}"
    assert any(re.search(expected, each) for each in caplog.messages), caplog.messages


@on_uvloop
async def test_who_does_not_shake_hands_is_closed_and_holds_up_nobody(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.remote.server.listener.HANDSHAKE_S", 1.0)
    async with store(tmp_path / "data", tls(authority, "store")) as address, patience():
        host, port = address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        await serves(gateway(tmp_path, address, tls(authority, "gateway")))
        for reader, writer in silent:
            assert not await reader.read()
            writer.close()
        await until(
            lambda: any(re.search(r"the peer at 127\.0\.0\.1:\d+: no TLS: \w", each) for each in caplog.messages)
        )


@on_uvloop
async def test_certificates_are_read_again(tmp_path: Path, authority: Authority) -> None:
    old, new = Authority(tmp_path / "old"), authority
    own = old.issue("store", "store", "DNS:localhost", "IP:127.0.0.1")
    used = {name: tmp_path / f"used.{name}" for name in ("pem", "key", "ca")}

    def use(authority: Authority, certificate: Path, key: Path) -> None:
        for name, path in (("pem", certificate), ("key", key), ("ca", authority.file)):
            fresh = used[name].with_suffix(".new")
            fresh.write_bytes(path.read_bytes())
            fresh.replace(used[name])

    use(old, *own)
    shown = {"split.certificate": str(used["pem"]), "split.key": str(used["key"]), "split.ca": str(used["ca"])}
    async with store(tmp_path / "data", shown) as address:
        use(new, new.folder / "store.pem", new.folder / "store.key")
        await serves(gateway(tmp_path, address, tls(authority, "gateway")))


async def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: Authority) -> None:
    with pytest.raises(TlsError, match="none\\.pem"):
        async with store(
            tmp_path / "data", {**tls(authority, "store"), "split.certificate": str(tmp_path / "none.pem")}
        ):
            pass
    node = gateway(tmp_path, "127.0.0.1:9", {**tls(authority, "gateway"), "split.ca": str(tmp_path / "none.pem")})
    with pytest.raises(TlsError, match="none\\.pem"):
        await asyncio.wait_for(node.start(), 10)
