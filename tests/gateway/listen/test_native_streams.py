"""Plain sockets served without a transport of the loop: nothing is lost, whatever the socket takes and brings."""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from tests.waiting import until

pytest.importorskip("gateway.listen._streams", reason="not compiled")

from gateway.listen._streams import Stream, Streams

LINGER_NOT = struct.pack("ii", 1, 0)
HIGH = 256 * 1024  # bytes


class Receiver:
    """Stands in for a connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.congested = False
        self.uncongestions = 0
        self.gone = asyncio.Event()
        self.on_data: Callable[[bytes], None] | None = None

    def receive(self, data: bytes) -> None:
        self.received += data
        if self.on_data is not None:
            self.on_data(data)

    def uncongested(self) -> None:
        self.congested = False
        self.uncongestions += 1


class Pair:
    """A stream, what it feeds, and the client's end."""

    def __init__(self, streams: Streams, tcp: bool) -> None:
        if tcp:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                self.client = socket.create_connection(listening.getsockname())
                served, _ = listening.accept()
        else:
            self.client, served = socket.socketpair()
        self.client.setblocking(False)
        served.setblocking(False)
        self.receiver = Receiver()
        self.stream: Stream = streams.add(served.detach())
        self.stream.connection = self.receiver  # type: ignore[assignment]


@pytest.fixture
async def streams() -> AsyncIterator[Streams]:
    def gone(receiver: Receiver) -> None:
        receiver.gone.set()

    held = Streams(asyncio.get_running_loop(), gone)  # type: ignore[arg-type]
    yield held
    held.close()


@pytest.fixture(params=["tcp", "unix"])
async def pair(streams: Streams, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    made = Pair(streams, request.param == "tcp")
    yield made
    made.client.close()


async def test_a_stream_sends_and_receives_bytes(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(pair.client, b"one")
    await until(lambda: pair.receiver.received == b"one")
    pair.stream.write(b"two")
    pair.stream.write(b"")
    pair.stream.write(b"three")
    assert await loop.sock_recv(pair.client, 100) == b"twothree"


async def test_more_than_one_turn_reads(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    sent = bytes(range(256)) * 8192
    sending = asyncio.create_task(loop.sock_sendall(pair.client, sent))
    await until(lambda: len(pair.receiver.received) == len(sent))
    await sending
    assert pair.receiver.received == sent


async def test_bytes_received_while_reading_is_paused_are_read_later(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    pair.stream.pause_reading()
    await loop.sock_sendall(pair.client, b"while paused")
    pair.client.shutdown(socket.SHUT_WR)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not pair.receiver.received
    pair.stream.resume_reading()
    await pair.receiver.gone.wait()  # of the end it hears too, though no event tells of it any more
    assert pair.receiver.received == b"while paused"


async def test_pausing_within_a_read_stops_before_the_next(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    pair.receiver.on_data = lambda _: pair.stream.pause_reading()
    sending = asyncio.create_task(loop.sock_sendall(pair.client, bytes(200_000)))
    await until(lambda: bool(pair.receiver.received))
    first = len(pair.receiver.received)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(pair.receiver.received) == first
    pair.receiver.on_data = None
    pair.stream.resume_reading()
    await until(lambda: len(pair.receiver.received) == 200_000)
    await sending


async def test_a_client_that_does_not_read_congests_and_loses_nothing(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    chunk = bytes(range(256)) * 256
    sent = 0
    while not pair.receiver.congested:
        pair.stream.write(chunk)
        sent += len(chunk)
    assert sent > HIGH
    taken = bytearray()
    while len(taken) < sent:
        taken += await loop.sock_recv(pair.client, 1 << 16)
    assert taken == chunk * (sent // len(chunk))
    await until(lambda: pair.receiver.uncongestions == 1)
    assert not pair.receiver.congested


async def test_closing_gives_the_client_what_waits(pair: Pair, streams: Streams) -> None:
    loop = asyncio.get_running_loop()
    sent = 0
    while not pair.receiver.congested:
        pair.stream.write(bytes(65536))
        sent += 65536
    pair.stream.close()
    pair.stream.write(b"too late")
    await asyncio.sleep(0)
    assert not pair.receiver.gone.is_set()
    taken = 0
    while data := await loop.sock_recv(pair.client, 1 << 16):
        taken += len(data)
    assert taken == sent
    await pair.receiver.gone.wait()
    assert len(streams) == 0


async def test_abort_closes_a_stream_with_unsent_bytes_at_once(pair: Pair, streams: Streams) -> None:
    while not pair.receiver.congested:
        pair.stream.write(bytes(65536))
    pair.stream.close()
    pair.stream.abort()
    pair.stream.abort()
    await pair.receiver.gone.wait()
    assert len(streams) == 0
    assert pair.stream.get_extra_info("peername") is None


async def test_the_receiver_gets_the_last_bytes_before_the_client_closed(pair: Pair) -> None:
    await asyncio.get_running_loop().sock_sendall(pair.client, b"last words")
    pair.client.close()
    await pair.receiver.gone.wait()
    assert pair.receiver.received == b"last words"
    pair.stream.write(b"nobody hears")


@pytest.mark.parametrize("pair", ["tcp"], indirect=True)
async def test_a_reset_by_the_client_ends_the_stream(pair: Pair) -> None:
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    pair.client.close()
    await pair.receiver.gone.wait()


@pytest.mark.parametrize("pair", ["tcp"], indirect=True)
async def test_a_closing_client_that_resets_is_not_waited_for(pair: Pair) -> None:
    while not pair.receiver.congested:
        pair.stream.write(bytes(65536))
    pair.stream.close()
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    pair.client.close()
    await pair.receiver.gone.wait()


@pytest.mark.parametrize("pair", ["tcp"], indirect=True)
async def test_a_reset_while_reading_is_paused_closes(pair: Pair) -> None:
    pair.stream.pause_reading()
    await asyncio.get_running_loop().sock_sendall(pair.client, b"never read")
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    pair.client.close()
    await pair.receiver.gone.wait()


@pytest.mark.parametrize("pair", ["tcp"], indirect=True)
async def test_a_reset_after_a_partial_read_closes(pair: Pair) -> None:
    pair.receiver.on_data = lambda _: pair.stream.pause_reading()
    pair.client.send(b"a part")
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    pair.client.close()
    await pair.receiver.gone.wait()


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_half_closed_peer_that_reads_nothing_is_closed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    monkeypatch.setattr("gateway.listen._streams.LINGER_SECONDS", 0.01)
    while not pair.receiver.congested:
        pair.stream.write(bytes(65536))
    if not is_read:
        pair.stream.pause_reading()
    pair.client.shutdown(socket.SHUT_WR)
    await pair.receiver.gone.wait()


async def test_a_close_says_whether_something_waits_for_the_client(pair: Pair) -> None:
    """`close` returns whether the socket has taken everything, so the caller need not check again later."""
    pair.stream.write(b"last words")
    assert pair.stream.close()
    await pair.receiver.gone.wait()
    assert pair.client.recv(100) == b"last words"


async def test_a_close_says_that_something_waits(pair: Pair) -> None:
    while not pair.receiver.congested:
        pair.stream.write(bytes(65536))
    assert not pair.stream.close()
    pair.stream.abort()
    await pair.receiver.gone.wait()


class HeldClock:
    """The loop, but what is to come later comes when the test says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.later: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.add_reader, self.remove_reader = self._loop.add_reader, self._loop.remove_reader
        self.call_soon = self._loop.call_soon

    def call_later(self, _seconds: float, callback: Callable[..., None], *arguments: object) -> None:
        self.later.append((callback, arguments))

    def ring(self) -> None:
        callback, arguments = self.later.pop(0)
        callback(*arguments)


async def test_a_half_closed_peer_that_reads_gets_the_rest() -> None:
    clock = HeldClock()
    streams = Streams(clock, lambda receiver: receiver.gone.set())  # type: ignore[arg-type, attr-defined]
    pair = Pair(streams, tcp=False)
    pair.stream.write(bytes(8 << 20))
    pair.stream.pause_reading()
    pair.client.shutdown(socket.SHUT_WR)
    await until(lambda: bool(clock.later))
    for _ in range(3):
        left = 2 << 20  # more than the system keeps
        while left > 0:
            left -= len(await asyncio.get_running_loop().sock_recv(pair.client, 1 << 16))
        clock.ring()
        assert not pair.receiver.gone.is_set()
        assert len(clock.later) == 1
    clock.ring()
    await pair.receiver.gone.wait()
    pair.client.close()
    streams.close()


async def test_writing_to_a_closed_peer_ends_the_stream(pair: Pair) -> None:
    pair.stream.pause_reading()
    pair.client.close()

    def is_gone() -> bool:  # what is written first may only make the client's system answer that nobody is there
        pair.stream.write(b"x")
        return pair.receiver.gone.is_set()

    await until(is_gone)


async def test_a_fault_ends_its_own_stream_only(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Pair(streams, False), Pair(streams, False)

    def fail(_data: bytes) -> None:
        raise ValueError("a defect")

    bad.receiver.on_data = fail
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(bad.client, b"x")
    await loop.sock_sendall(good.client, b"y")
    await bad.receiver.gone.wait()
    await until(lambda: good.receiver.received == b"y")
    assert not good.receiver.gone.is_set()
    assert "a defect" in caplog.text
    good.client.close()
    bad.client.close()


async def test_closing_all_closes_sockets_without_callbacks(streams: Streams) -> None:
    pair = Pair(streams, False)
    streams.close()
    streams.close()
    assert await asyncio.get_running_loop().sock_recv(pair.client, 1) == b""
    assert not pair.receiver.gone.is_set()
    pair.client.close()


async def test_the_peer_has_a_name(streams: Streams) -> None:
    pair = Pair(streams, True)
    assert pair.stream.get_extra_info("peername") == pair.client.getsockname()
    assert pair.stream.get_extra_info("peercert") is None
    pair.client.close()


async def test_without_a_descriptor_the_peer_has_none(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    pair = Pair(streams, True)
    monkeypatch.setattr("os.dup", fails)
    assert pair.stream.get_extra_info("peername") is None
    pair.client.close()


async def test_a_descriptor_that_is_no_socket_is_refused(streams: Streams) -> None:
    with open("/dev/null", "rb") as nothing, pytest.raises(OSError, match="permitted"):  # noqa: ASYNC230, PTH123
        streams.add(nothing.fileno())
    assert len(streams) == 0
