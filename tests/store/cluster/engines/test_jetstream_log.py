"""What only the log in a JetStream stream does: it knows a stream that is not what it should be."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sluice.demo.engine_servers import NatsServers, ServerMissing
from store.cluster import jetstream_log
from store.cluster.engines import open_shared_log
from store.cluster.shared_log import (
    SharedLog,
    SharedLogDamaged,
    SharedLogMisconfigured,
    SharedLogUnavailable,
    SlotRemoved,
)
from tests.gateway.authority import Authority
from tests.store.cluster.engines.engine import Engine, Stream, decided, settle
from tests.waiting import patience

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_age": 10**12}, "max_age is 1000000000000 and must be 0"),
        ({"discard": "old"}, "discard is 'old' and must be 'new'"),
        ({"max_msgs": 1000}, "max_msgs is 1000"),
        ({"max_msgs_per_subject": 1}, "max_msgs_per_subject is 1"),
        ({"storage": "memory"}, "storage is 'memory'"),
        ({"retention": "workqueue"}, "retention is 'workqueue'"),
        ({"num_replicas": 1}, "it has 1 replicas and must have 3"),
        ({"deny_delete": False}, "deny_delete is False"),
        ({"allow_direct": False}, "allow_direct is False"),
        ({"subjects": ["other"]}, r"subjects is \['other'\]"),
        ({"allow_msg_ttl": True}, "allow_msg_ttl is set"),
        ({"first_seq": 100}, "first_seq is set"),
    ],
)
async def test_a_stream_with_other_settings_is_refused(
    jetstream: Engine, settings: dict[str, Any], reason: str
) -> None:
    async with Stream(jetstream) as stream:
        await stream.make(**settings)
        with pytest.raises(SharedLogMisconfigured, match=reason):
            await jetstream.open()
        await stream.ask("DELETE")


async def test_a_stream_that_is_there_is_used(jetstream: Engine) -> None:
    async with Stream(jetstream) as stream:
        await stream.make(description="made by hand", duplicate_window=10**9)
    log = await jetstream.open()
    assert await log.create(1, b"1")
    await log.close()


async def test_a_lost_tail_is_noticed(jetstream: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_log, "_DOUBT_S", 0.3)
    log = await jetstream.open()
    for slot in range(1, 6):
        assert await log.create(slot, b"%d" % slot)
    async with Stream(jetstream) as stream:
        await stream.ask("DELETE")
    again = await jetstream.open()
    assert await again.create(1, b"1")
    with pytest.raises(SharedLogDamaged, match=r"ends with message 1.*up to slot 5"):
        await log.create(6, b"6")
    for each in (log, again):
        await each.close()


def cut_off_tail(folder: Path) -> None:
    """Take a part of the last message from the file of the stream."""
    (block,) = folder.glob("nats-1/jetstream/*/streams/log/msgs/*.blk")
    block.write_bytes(block.read_bytes()[:-10])
    (block.parent / "index.db").unlink(missing_ok=True)


async def test_a_tail_that_the_disk_lost_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_log, "_DOUBT_S", 0.3)
    with single(tmp_path) as servers:
        log = await open_shared_log(servers.url("log"), {"replicas": 1})
        for slot in range(1, 6):
            assert await settle(log, slot, b"%d" % slot) == b"%d" % slot
        servers.servers[0].kill()
        cut_off_tail(tmp_path)
        servers.servers[0].start()
        assert await decided(log, 4) == b"4"
        assert await log.read(5) is None
        assert await log.end() == 5
        with pytest.raises(SharedLogDamaged, match=r"ends with message 4.*up to slot 5"):
            await log.create(6, b"6")
        await log.close()


async def test_a_message_that_is_gone_is_noticed(jetstream: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_log, "_DOUBT_S", 0.3)
    log = await jetstream.open()
    async with Stream(jetstream) as stream:
        await stream.ask("DELETE")
        await stream.make(deny_delete=False)
        for slot in range(1, 4):
            assert await log.create(slot, b"%d" % slot)
        await stream.ask("MSG.DELETE", seq=2)
        with pytest.raises(SharedLogDamaged, match="message 2"):
            await log.read(2)
        with pytest.raises(SharedLogDamaged, match="message 2"):
            await log.create(2, b"again")
        await stream.ask("MSG.DELETE", seq=1)
    with pytest.raises(SlotRemoved, match="begins with slot 3"):
        await log.read(1)
    await log.close()


async def test_a_write_that_became_another_message_is_noticed(
    jetstream: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server would answer that does not know the condition."""
    log = await jetstream.open()
    assert await settle(log, 1, b"1") == b"1"
    assert isinstance(log, jetstream_log.JetStreamLog)
    send = log._send

    async def send_without_condition(what: str, subject: str, payload: bytes, headers: dict[str, str] | None) -> Any:
        return await send(what, subject, payload, None)

    monkeypatch.setattr(log, "_send", send_without_condition)
    with pytest.raises(SharedLogDamaged, match="slot 1 was written as message 2"):
        await log.create(1, b"again")
    await log.close()


async def test_a_stream_that_somebody_emptied_has_no_open_slots(jetstream: Engine) -> None:
    log = await jetstream.open()
    for slot in range(1, 4):
        assert await log.create(slot, b"%d" % slot)
    async with Stream(jetstream) as stream:
        await stream.ask("PURGE")
    with pytest.raises(SlotRemoved, match="begins with slot 4"):
        await log.create(2, b"2")
    assert await log.end() == 4
    await log.close()


@pytest.mark.parametrize(
    ("address", "options", "reason"),
    [
        ("nats://user:pass@127.0.0.1:4222/log", {}, "credentials are options"),
        ("nats://127.0.0.1:4222/", {}, "no name of a stream"),
        ("nats://127.0.0.1:4222/a.b", {}, "no name of a stream"),
        ("nats://127.0.0.1:4222/log", {"replicas": 9}, "replicas 1 to 5"),
        ("nats://127.0.0.1:4222/log", {"passwort": "x"}, "unknown options of a JetStream log: passwort"),
        ("nats://127.0.0.1:4222/log", {"tls_ca_file": __file__}, "begins with tls://"),
        ("tls://127.0.0.1:4222/log", {"tls_ca_file": "/nowhere"}, "there is no file /nowhere"),
        ("ftp://127.0.0.1/log", {}, "begins with one of s3://"),
        ("nats://[::1/log", {}, "is no address"),
        ("nats://127.0.0.1:port/log", {}, "addresses or credentials of NATS cannot be used: "),
        ("nats:///log", {}, "addresses or credentials of NATS cannot be used: "),
        ("nats://127.0.0.1:4222/log", {"replicas": "three"}, "replicas must be a number, not 'three'"),
        ("nats://127.0.0.1:4222/log", {"request_timeout_s": "5s"}, "request_timeout_s must be a number, not '5s'"),
    ],
)
async def test_what_is_wrong_with_an_address_is_said(address: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SharedLogMisconfigured, match=reason) as caught:
        await open_shared_log(address, options)
    assert "pass" not in str(caught.value) or "passwort" in str(caught.value)


def single(folder: Path, **settings: Any) -> NatsServers:
    try:
        return NatsServers(folder, count=1, **settings)
    except ServerMissing as error:
        pytest.skip(str(error))


async def test_a_server_that_takes_small_messages_only_is_refused(tmp_path: Path) -> None:
    reason = pytest.raises(SharedLogMisconfigured, match="max_payload of the NATS server is 65536")
    with single(tmp_path, max_payload=1 << 16) as servers, reason:
        await open_shared_log(servers.url("log"), {"replicas": 1})


async def test_a_server_without_tls_hears_no_password() -> None:
    heard = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        writer.write(b'INFO {"version": "2.10.0", "max_payload": 8388608, "auth_required": true}\r\n')
        while data := await reader.read(1000):
            heard += data
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}/log"
        options = {"user": "u", "password": "secret", "request_timeout_s": 0.5}
        with pytest.raises(SharedLogUnavailable, match="the server asks for no TLS"):
            await open_shared_log(url, options)
    assert not heard


async def test_replicas_need_a_cluster(tmp_path: Path) -> None:
    with single(tmp_path) as servers, pytest.raises(SharedLogMisconfigured, match="replicas > 1 not supported"):
        await open_shared_log(servers.url("log"), {})


async def test_servers_that_are_away_are_unavailable_until_they_are_back(tmp_path: Path) -> None:
    with single(tmp_path) as servers:
        options = {"replicas": 1, "request_timeout_s": 0.5}
        log = await open_shared_log(servers.url("log"), options)
        assert await log.create(1, b"1")
        servers.stop()
        with pytest.raises(SharedLogUnavailable):
            await log.create(2, b"2")
        with pytest.raises(SharedLogUnavailable):
            await open_shared_log(servers.url("log"), options)
        servers.start()
        while True:
            try:
                assert await log.read(1) == b"1"
                break
            except SharedLogUnavailable:
                pass
        await log.close()


async def test_credentials_are_checked_and_not_told(tmp_path: Path) -> None:
    password = "the-password-of-this-test"
    servers = single(tmp_path)
    config = tmp_path / "nats-1" / "nats.conf"
    config.write_text(config.read_text() + f'authorization {{ user: "sluice", password: "{password}" }}\n')
    with servers:
        options = {"replicas": 1, "request_timeout_s": 2.0, "user": "sluice"}
        with pytest.raises(SharedLogUnavailable, match="Authorization Violation") as caught:
            await open_shared_log(servers.url("log"), {**options, "password": password + "?"})
        assert password not in str(caught.value)
        log = await open_shared_log(servers.url("log"), {**options, "password": password})
        assert await log.create(1, b"1")
        await log.close()


async def test_servers_and_nodes_prove_who_they_are(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.issue("server", "nats", "IP:127.0.0.1")
    own_certificate, own_key = authority.issue("node", "node-1")
    servers = single(tmp_path)
    config = tmp_path / "nats-1" / "nats.conf"
    files = f'cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.file}"'
    config.write_text(config.read_text() + f"tls {{ {files}, verify: true }}\n")
    with servers:
        url = servers.url("log").replace("nats://", "tls://")
        trust = {"replicas": 1, "request_timeout_s": 2.0, "tls_ca_file": str(authority.file)}
        own = {"tls_cert_file": str(own_certificate), "tls_key_file": str(own_key)}
        stranger = Authority(tmp_path / "stranger")
        for options in (trust, {**trust, **own, "tls_ca_file": str(stranger.file)}):
            with pytest.raises(SharedLogUnavailable):
                await open_shared_log(url, options)
        log = await open_shared_log(url, {**trust, **own})
        assert await log.create(1, b"1")
        servers.servers[0].kill()
        servers.servers[0].start()
        assert await settle(log, 2, b"2") == b"2"
        await log.close()


async def test_a_server_that_serves_no_streams_is_left(tmp_path: Path) -> None:
    """It answers, also the client's pings. So does a server that is cut off from the others of its cluster."""
    good, useless = single(tmp_path / "good"), single(tmp_path / "useless")
    config = tmp_path / "useless" / "nats-1" / "nats.conf"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if "jetstream" not in line))
    address = f"nats://127.0.0.1:{useless.ports[0]},127.0.0.1:{good.ports[0]}/log"
    async with patience():
        with good:
            log = await open_shared_log(address, {"replicas": 1, "request_timeout_s": 0.5})
            assert await settle(log, 1, b"1") == b"1"
            useless.servers[0].start()
            try:
                good.servers[0].kill()
                assert "JetStream is not enabled" in await reason_of_refusal(log)
                good.servers[0].start()
                assert await settle(log, 2, b"2") == b"2"
            finally:
                useless.stop()
            await log.close()


async def reason_of_refusal(log: SharedLog) -> str:
    """Ask for slot 1 until a server answers that it cannot serve that. Returns what it says."""
    while True:
        try:
            await log.read(1)
        except SharedLogUnavailable as error:
            if "nobody serves" in str(error):
                return str(error)
        await asyncio.sleep(0.01)
