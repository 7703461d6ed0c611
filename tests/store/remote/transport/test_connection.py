"""Connections between gateways and a store: peers that speak nonsense, stop halfway, or do not read."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from store.remote import RemoteConfig
from store.remote.server.listener import StoreListener
from store.remote.transport.connection import Connection, connect
from store.remote.transport.link import LinkBroken
from store.remote.transport.requests import Refused, Requester, Requests, serve_requests
from store.remote.wire.calls import encode
from store.remote.wire.frames import MAX_FRAME, MAX_REQUEST, PREFACE, FrameKind, head_of
from store.remote.wire.layout import LAYOUT, VERSION, Hello
from tests.loops import on_each_loop
from tests.waiting import PATIENCE_S, patience, until

QUICK = RemoteConfig(heartbeat_s=0.02, silence_s=0.1)


@asynccontextmanager
async def listening(config: RemoteConfig | None = None) -> AsyncIterator[tuple[StoreListener, str]]:
    listener = StoreListener(config or RemoteConfig(), status=lambda: b"well")
    port = await listener.open("127.0.0.1:0")
    try:
        yield listener, f"127.0.0.1:{port}"
    finally:
        await listener.close()


async def answers(address: str) -> bool:
    requests = Requests(await connect(address))
    try:
        return await requests.ask(FrameKind.STATUS, b"") == b"well"
    finally:
        requests.close()


@on_each_loop
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it began with b'GET / HT'"),
        (b"\x10\x0c\0\4MQTT\4\0\0\0\0\0", "does not speak the protocol between gateways and stores"),
        (PREFACE + head_of(99, 0, 0), "a frame of kind 99, which there is not"),
        (PREFACE + head_of(FrameKind.MESSAGE, 0, MAX_REQUEST + 1), f"and {MAX_REQUEST} is the limit"),
        (PREFACE + head_of(FrameKind.ANSWER, 1, 0), "a frame of kind 1 and number 1 as a request"),
        (PREFACE + 2 * head_of(FrameKind.SERVICE_STATE, 1, 0), "kind 12 and number 1 as a request"),
    ],
)
async def test_nonsense_is_logged_and_ends_its_connection(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (_, address), patience():
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        while await reader.read(100):  # until it is closed
            pass
        writer.close()
        await until(lambda: len(caplog.messages) == 1)
        assert "closing the connection of the peer at 127.0.0.1:" in caplog.messages[0]
        assert reason in caplog.messages[0]
        assert await answers(address)


@on_each_loop
@pytest.mark.parametrize("sent", [b"", PREFACE, PREFACE[:3], PREFACE + head_of(FrameKind.STATUS, 1, 9) + b"half"])
async def test_who_stops_before_the_first_frame_is_closed(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(QUICK) as (_, address), patience():
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        assert await reader.read() == PREFACE
        writer.close()
        assert "it has said nothing" in caplog.messages[0]


@on_each_loop
async def test_many_peers_that_try_again_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "store.remote")
    async with listening() as (_, address), patience():
        host, port = address.split(":")
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"x")
            while await reader.read(100):
                pass
            writer.close()
        await until(lambda: len(caplog.records) == 20)
    assert sum(each.levelno == logging.WARNING for each in caplog.records) < 20


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Connection, Connection]]:
    """Both sides of a connection."""
    loop = asyncio.get_running_loop()
    sockets = socket.socketpair()
    for each in sockets:
        each.setblocking(False)
    made = [(await loop.connect_accepted_socket(lambda: Connection(MAX_FRAME), each))[1] for each in sockets]
    try:
        yield made[0], made[1]
    finally:
        for connection in made:
            connection.abort()


@on_each_loop
async def test_frames_of_all_sizes_arrive_in_order() -> None:
    sizes = [0, 1, 4095, 4096, 1 << 16, 5_000_000, 3]
    async with pair() as (one, other), patience():
        writing = asyncio.create_task(write_all(one, sizes))
        for number, size in enumerate(sizes):
            assert await other.read() == (FrameKind.ANSWER, number, b"x" * size)
        await writing
        one.close()
        assert await other.read() is None


async def write_all(connection: Connection, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        await connection.write(FrameKind.ANSWER, number, b"x" * size)


@on_each_loop
async def test_who_does_not_read_makes_the_writer_wait() -> None:
    async with pair() as (one, other), patience():
        written = 0

        async def write() -> None:
            nonlocal written
            while written < 1000:
                await one.write(FrameKind.MESSAGE, 0, b"x" * 100_000)
                written += 1

        writing = asyncio.create_task(write())
        before = -1
        while before != written:  # no further frame fits
            before = written
            await asyncio.sleep(0.05)
        assert written < 100, "ten megabytes wait somewhere"
        for _ in range(1000):
            frame = await other.read()
            assert frame is not None
            assert len(frame[2]) == 100_000
        await writing


@on_each_loop
async def test_frames_without_a_body_also_make_the_writer_wait() -> None:
    async with pair() as (one, other), patience():
        written = 0

        async def write() -> None:
            nonlocal written
            while written < 1_000_000:
                await one.write(FrameKind.CANCEL, 1, b"")
                written += 1

        writing = asyncio.create_task(write())
        before = -1
        while before != written:  # no further frame fits
            before = written
            await asyncio.sleep(0.05)
        assert 0 < written < 500_000
        assert len(other._frames) < 100_000
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


@on_each_loop
async def test_a_writer_that_waits_hears_of_the_end() -> None:
    async with pair() as (one, other), patience():
        writing = asyncio.create_task(one.write(FrameKind.MESSAGE, 0, b"x" * 10_000_000))
        await asyncio.sleep(0)
        other.abort()
        with pytest.raises(ConnectionError):
            await writing
        with pytest.raises(ConnectionError):
            await one.write(FrameKind.MESSAGE, 0, b"x")


@asynccontextmanager
async def asking(carry_out: Callable[[int, bytes], Awaitable[bytes]]) -> AsyncIterator[Requests]:
    async with pair() as (one, other):

        async def serve() -> None:
            first = await other.read()
            assert first is not None
            await serve_requests(other, first, carry_out)

        serving = asyncio.create_task(serve())
        requests = Requests(one)
        yield requests
        requests.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@on_each_loop
async def test_requests_are_answered_in_any_order_and_refused_with_a_reason() -> None:
    later = asyncio.Event()

    async def carry_out(kind: int, body: bytes) -> bytes:
        if body == b"first":
            await later.wait()
        if body == b"wrong":
            raise Refused("not this one")
        if body == b"worse":
            raise ZeroDivisionError
        return bytes([kind]) + body

    async with asking(carry_out) as requests, patience():
        first = asyncio.create_task(requests.ask(FrameKind.READ, b"first"))
        assert await requests.ask(FrameKind.STATUS, b"second") == bytes([FrameKind.STATUS]) + b"second"
        for body, reason in ((b"wrong", "not this one"), (b"worse", "the store failed: ZeroDivisionError")):
            with pytest.raises(Refused, match=reason):
                await requests.ask(FrameKind.READ, body)
        with pytest.raises(Refused, match="is the limit"):
            await requests.ask(FrameKind.READ, bytes(MAX_REQUEST + 1))
        later.set()
        assert await first == bytes([FrameKind.READ]) + b"first"


@on_each_loop
async def test_a_request_is_cancelled_with_its_caller() -> None:
    open_requests = 0

    async def carry_out(_kind: int, body: bytes) -> bytes:
        nonlocal open_requests
        open_requests += 1
        try:
            if body:
                await asyncio.Event().wait()
            return body
        finally:
            open_requests -= 1

    async with asking(carry_out) as requests, patience():
        asked = [asyncio.create_task(requests.ask(FrameKind.READ, b"x")) for _ in range(15)]
        await until(lambda: open_requests == 15)
        assert await requests.ask(FrameKind.READ, b"") == b""
        asked[0].cancel()
        await until(lambda: open_requests == 14)
        requests.close()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(end, ConnectionError) for end in ends[1:])
        await until(lambda: open_requests == 0)
        with pytest.raises(ConnectionError):
            await requests.ask(FrameKind.READ, b"")


@on_each_loop
async def test_no_more_requests_of_a_connection_are_open_than_may_be() -> None:
    most = open_requests = 0

    async def carry_out(_kind: int, body: bytes) -> bytes:
        nonlocal most, open_requests
        open_requests += 1
        most = max(most, open_requests)
        await asyncio.sleep(0)
        open_requests -= 1
        return body

    async with asking(carry_out) as requests, patience():
        asked = [requests.ask(FrameKind.READ, b"%d" % number) for number in range(100)]
        assert await asyncio.gather(*asked) == [b"%d" % number for number in range(100)]
    assert most == 16


@on_each_loop
async def test_no_request_outlives_its_connection() -> None:
    """However many are open: then no further frame is read."""
    open_requests = 0

    async def carry_out(_kind: int, _body: bytes) -> bytes:
        nonlocal open_requests
        open_requests += 1
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            open_requests -= 1

    async with asking(carry_out) as requests, patience():
        asked = [asyncio.create_task(requests.ask(FrameKind.READ, b"x")) for _ in range(20)]
        await until(lambda: open_requests == 16)
        requests.close()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(lambda: open_requests == 0)


@on_each_loop
async def test_a_server_that_fails_is_logged_and_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        async def attach(self, hello: Hello, connection: Connection) -> None:
            raise LinkBroken("nonsense") if hello.gateway == "broken" else ZeroDivisionError

        async def read(self, producer: bytes, body: bytes) -> bytes:
            raise NotImplementedError

    async with listening() as (listener, address), patience():
        listener.serve(Failing())
        for gateway, logged in (("broken", "closing the connection of the peer at"), ("g1", "serving the peer at")):
            connection = await connect(address)
            await connection.write_message(encode(Hello(VERSION, LAYOUT, b"p", gateway, "", 0, 0, False, -1)))
            assert await connection.read() is None
            assert logged in caplog.messages[-1]


@on_each_loop
async def test_an_address_that_does_not_answer_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name has several addresses, perhaps one of IPv6 that leads nowhere."""
    async with listening() as (_, address), patience():
        port = int(address.rpartition(":")[2])
        loop, connects = asyncio.get_running_loop(), list[object]()
        sock_connect = loop.sock_connect

        async def resolve(host: str, *_: object, **__: object) -> list[object]:
            hosts = ("127.0.0.3", "127.0.0.2", "127.0.0.1") if host == "store.example" else (host,)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in hosts]

        async def connect_to(own: socket.socket, place: tuple[str, int]) -> None:
            connects.append(place[0])
            if place[0] == "127.0.0.3":
                await asyncio.Event().wait()
            await sock_connect(own, place)

        monkeypatch.setattr("store.remote.transport.connection._ADDRESS_S", 0.05)
        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        monkeypatch.setattr(loop, "sock_connect", connect_to)
        assert await answers(f"store.example:{port}")
        assert connects == ["127.0.0.3", "127.0.0.2", "127.0.0.1"]


@on_each_loop
async def test_an_address_that_the_machine_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` may be ::1 where IPv6 is switched off. With no address left, the error says why."""
    hosts = ["192.0.2.1", "127.0.0.1"]

    async def resolve(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]

    listener = StoreListener(RemoteConfig(), status=lambda: b"well")
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        port = await listener.open("store.example:0")
        del hosts[1]
        with pytest.raises(OSError, match=r"cannot listen for gateways on store\.example:0: Cannot assign"):
            await listener.open("store.example:0")
    assert await answers(f"127.0.0.1:{port}")
    await listener.close()


@on_each_loop
async def test_addresses_of_ipv6(caplog: pytest.LogCaptureFixture) -> None:
    listener = StoreListener(RemoteConfig(), status=lambda: b"well")
    try:
        port = await listener.open("[::1]:0")
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert await answers(f"[::1]:{port}")
    _, writer = await asyncio.open_connection("::1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    await until(lambda: len(caplog.messages) == 1)
    assert "closing the connection of the peer at [::1]:" in caplog.messages[0]
    assert caplog.messages[0].endswith("it began with b'PRI * HT', which is HTTP/2 or gRPC")
    writer.close()
    await listener.close()


@on_each_loop
async def test_peers_that_say_nothing_do_not_hold_up_those_at_another_address() -> None:
    async with listening(RemoteConfig(silence_s=2 * PATIENCE_S)) as (listener, address), patience():
        path = mkdtemp(prefix="sluice-")  # short: paths of sockets have 107 bytes at the most
        await listener.open(f"unix:{path}/s")
        host, port = address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(140)]
        for _ in range(3):
            assert await answers(f"unix:{path}/s")
        for _, writer in silent:
            writer.close()
        assert await answers(address)
        rmtree(path)


@on_each_loop
async def test_no_more_connections_are_served_than_may_be(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.remote.server.listener._MAX_CONNECTIONS", 2)
    async with listening() as (_, address), patience():
        asking = [Requests(await connect(address)) for _ in range(2)]
        for each in asking:
            assert await each.ask(FrameKind.STATUS, b"") == b"well"
        with pytest.raises(ConnectionError):
            await answers(address)
        assert caplog.messages[0].endswith("2 others are open, which is the limit")
        for each in asking:
            each.close()
        while True:
            with suppress(ConnectionError):
                assert await answers(address)
                break


@on_each_loop
async def test_who_asks_again_connects_again() -> None:
    async with listening() as (listener, address), patience():
        requester = Requester(address)
        assert await requester.ask(FrameKind.STATUS, b"") == b"well"
        await listener.close()
        with pytest.raises(ConnectionError):
            await requester.ask(FrameKind.STATUS, b"")
        await listener.open(address)
        assert await requester.ask(FrameKind.STATUS, b"") == b"well"
        requester.close()
        with pytest.raises(ConnectionError):
            await requester.ask(FrameKind.STATUS, b"")
