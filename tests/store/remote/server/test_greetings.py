"""The greeting between a gateway and a store."""

import asyncio
import hashlib
import socket
import typing
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import msgspec
import msgspec.inspect
import pytest

import notify.wire
from notify.event_receiver import EventReceiver
from notify.hub import Hub
from store import control
from store.api import HeldMessage, Store, StoreStats
from store.config import StoreConfig
from store.engine import Engine
from store.errors import StoreClosed
from store.remote import RemoteConfig, RemoteStore, StoreServer
from store.remote.server import listener
from store.remote.transport.connection import Connection, connect
from store.remote.wire.calls import METHODS
from store.remote.wire.faults import RemoteFault
from store.remote.wire.frames import PREFACE, FrameKind, head_of
from store.remote.wire.layout import LAYOUT, VERSION, Hello, Item, Verdict, Welcome
from tests.gateway.connection.test_slow_disk import slow_disk
from tests.waiting import PATIENCE_S, patience, until

CONFIG = RemoteConfig(heartbeat_s=0.1, silence_s=10, grace_s=10, max_gateways=2)


class Served:
    """A store that serves."""

    async def open(self, folder: Path) -> "Served":
        self.sockets = Path(mkdtemp(prefix="sluice-"))  # short: paths of sockets have 107 bytes at the most
        self.engine = await Engine.open(folder, StoreConfig(segment_size=1 << 20))
        self.hub = Hub(self.engine)
        self.server = StoreServer(self.engine, self.hub, CONFIG)
        self.address = f"unix:{self.sockets / 's'}"
        await self.server.start(self.address)
        self.opened: list[Connection] = []
        return self

    async def greet(self, message: bytes) -> tuple[Welcome, Connection]:
        connection = await connect(self.address)
        self.opened.append(connection)
        await connection.write_message(message)
        return msgspec.msgpack.decode(await connection.read_message() or b"", type=Welcome), connection

    async def close(self) -> None:
        for connection in self.opened:
            connection.abort()
        await self.server.stop()
        await self.engine.close()
        rmtree(self.sockets)


def hello(
    producer: bytes = b"a@1", opening: str = "", log_end: int = 0, version: int = VERSION, layout: str = LAYOUT
) -> bytes:
    gateway = producer.partition(b"@")[0].decode()
    return msgspec.msgpack.encode(Hello(version, layout, producer, gateway, opening, log_end, 0, False, -1))


@pytest.fixture
async def served(tmp_path: Path):
    found = await Served().open(tmp_path)
    yield found
    await found.close()


async def test_repeated_greetings_are_one_gateway(served: Served):
    greetings = await asyncio.gather(*(served.greet(hello()) for _ in range(5)))
    assert all(welcome.verdict == Verdict.STARTS for welcome, _ in greetings)
    assert list(served.server.gateways) == [b"a@1"]
    assert len(served.hub._feeds) == 1
    assert len(await served.engine.producers(None, 10)) == 1
    again, _ = await served.greet(hello(opening=greetings[0][0].opening))
    assert again.verdict == Verdict.CONTINUES
    assert len(served.hub._feeds) == 1


@pytest.mark.usefixtures("interpreted_flushes")
async def test_greetings_that_are_repeated_while_the_disk_is_slow_wait_for_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A gateway repeats its greeting when it has waited for its silence. Other gateways are answered meanwhile."""
    served = await Served().open(tmp_path)
    known = (await served.greet(hello(b"known@1")))[0]
    appended: list[bytes] = []
    append = served.engine.append
    monkeypatch.setattr(served.engine, "append", lambda frames, done: (appended.extend(frames), append(frames, done)))
    go_on = slow_disk(monkeypatch)
    silent = RemoteConfig(heartbeat_s=0.02, silence_s=0.1, grace_s=PATIENCE_S)
    greetings = 0
    serve = served.server._begin_producer

    async def begin(greeting: Hello) -> None:
        nonlocal greetings
        greetings += 1
        await serve(greeting)

    monkeypatch.setattr(served.server, "_begin_producer", begin)
    opening = asyncio.create_task(RemoteStore.open(served.address, "a", EventReceiver(), silent))
    await until(lambda: greetings >= 3)
    async with patience():
        again, _ = await served.greet(hello(b"known@1", known.opening))
    assert again.verdict == Verdict.CONTINUES
    go_on.set()
    store = await opening
    assert len(appended) == 1
    await store.close()
    await served.close()


async def test_the_greeting_of_a_gateway_that_was_given_up_is_refused(served: Served):
    opening = served.engine.meta.openings[-1].name
    welcome, _ = await served.greet(hello(b"b@1", opening))
    assert (welcome.verdict, welcome.reason) == (Verdict.GIVEN_UP, "the end of this gateway is recorded")
    assert served.server.gateways == {}


async def test_who_does_not_read_the_answer_does_not_hold_up_others(served: Served, monkeypatch: pytest.MonkeyPatch):
    """Nor its own next greeting."""
    counts = {b"%d" % number * 50: 1 for number in range(100_000)}
    partitions = served.engine.partitions
    monkeypatch.setattr(partitions, "counts", counts)
    loop, opening = asyncio.get_running_loop(), served.engine.meta.openings[-1].name
    with socket.socket(socket.AF_UNIX) as silent:
        silent.setblocking(False)
        await loop.sock_connect(silent, served.address.removeprefix("unix:"))
        greeting = hello()
        await loop.sock_sendall(silent, PREFACE + head_of(FrameKind.MESSAGE, 0, len(greeting)) + greeting)
        await until(lambda: b"a@1" in served.server.gateways)
        async with patience():
            again, _ = await served.greet(hello(opening=opening))
    assert again.verdict == Verdict.CONTINUES
    assert len(again.parent_partitions) == len(counts)


async def test_no_more_gateways_are_served_than_may_be(served: Served):
    for number in range(2):
        await served.greet(hello(b"b@%d" % number))
    welcome, _ = await served.greet(hello(b"b@2"))
    assert welcome.verdict == Verdict.REFUSED
    assert "which is the limit" in welcome.reason
    with pytest.raises(StoreClosed, match="does not serve gateway c: 2 gateways are attached"):
        await RemoteStore.open(served.address, "c", EventReceiver(), CONFIG)


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        (hello(version=9), f"it speaks version 9 of the protocol, and this side version {VERSION}"),
        (msgspec.msgpack.encode([9, "other", b"layout"]), "it speaks version 9"),
        (msgspec.msgpack.encode([VERSION, b"a@1", "a"]), "its messages have layout"),
        (hello(layout="other"), f"its messages have layout other, and this side layout {LAYOUT}: install the same"),
        (msgspec.msgpack.encode([VERSION, LAYOUT, "another", b"struct"]), "no greeting"),
        (b"\xff\x00\x01", "no greeting"),
        (b"", "no greeting"),
    ],
)
async def test_a_malformed_greeting_is_answered(served: Served, greeting: bytes, answer: str):
    welcome, _ = await served.greet(greeting)
    assert welcome.verdict == Verdict.REFUSED
    assert answer in welcome.reason
    assert served.server.gateways == {}


async def test_a_gateway_that_asks_again_and_again_is_refused_with_one_line(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(listener, "_QUIET_S", 0.0)
    for layout in ("other", "other", "third", "other"):
        await served.greet(hello(layout=layout))
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == 2
    assert "layout other" in told[0]
    assert "layout third" in told[1]


async def test_a_gateway_that_breaks_the_rules_ends_its_stream_and_may_come_back(served: Served):
    welcome, connection = await served.greet(hello())
    await connection.write_message(b"\1\0\0\0\0\0\0\0" + b"\0\0\0\0\0\0\0\0" + b"\x63\1\0\0\0x")  # an item of kind 99
    while await connection.read_message() is not None:
        pass
    again, _ = await served.greet(hello(opening=welcome.opening))
    assert again.verdict == Verdict.CONTINUES


async def test_a_socket_that_somebody_listens_on_is_left_to_him(served: Served, tmp_path: Path):
    second = StoreServer(served.engine, served.hub, CONFIG)
    with pytest.raises(OSError, match="another process does"):
        await second.start(served.address)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="the path exists and is not a socket"):
        await second.start(f"unix:{tmp_path / 'file'}")
    with pytest.raises(OSError, match="cannot listen for gateways"):
        await second.start(f"unix:{tmp_path / 'none' / 's'}")
    welcome, _ = await served.greet(hello())
    assert welcome.verdict == Verdict.STARTS


async def test_a_socket_that_a_process_left_is_taken(served: Served):
    left = served.sockets / "left"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left))
        gone.listen()
    second = StoreServer(served.engine, served.hub, CONFIG)
    await second.start(f"unix:{left}")
    await second.stop()


def language() -> str:
    """All that travels in MessagePack, in one number."""
    said = [Hello, Welcome, RemoteFault, StoreStats, list[HeldMessage], notify.wire._Rest, notify.wire._Filters]
    told = [str((each.name, each.value)) for each in Item]
    for method in METHODS:
        hints = typing.get_type_hints(getattr(Store, method.name))
        told += [method.name, *hints]
        said += hints.values()
    told += [repr(info) for info in msgspec.inspect.multi_type_info(said)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def test_another_language_is_another_layout():
    """Sides with different digests do not understand each other, and say so."""
    assert language() == LAYOUT


async def test_a_gateway_ended_while_away_appends_nothing_more(served: Served):
    """The store was restarted, and has taken it for dead before it was back: its clients are elsewhere."""

    async def clean_up_after(_is_gone: Callable[[bytes], bool]) -> None:
        """There is nothing of it."""

    registry = served.engine.gateway_registry
    await registry.start(clean_up_after)
    for name in (b"a", b"b"):
        await registry.join(name, None, False)
        await served.server._record([control.Produced(7, 0).frame(name + b"@1")])  # by the store of before
    await registry.leave(b"a")
    opening = served.engine.meta.openings[-1].name
    welcome, _ = await served.greet(hello(b"a@1", opening))
    assert (welcome.verdict, welcome.reason) == (Verdict.GIVEN_UP, "the gateway ended while it was disconnected")
    assert served.server.gateways == {}
    there, _ = await served.greet(hello(b"b@1", opening))
    assert (there.verdict, there.sequence) == (Verdict.STARTS, 7)
    await registry.stop()
