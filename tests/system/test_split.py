"""The store and its gateways as processes: clients move between gateways, any process is killed, and nothing that was
acknowledged is lost or comes twice."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.mqtt.reasons import ReasonCode
from tests.gateway.mqtt import wire
from tests.gateway.raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack, connect
from tests.system.conftest import NodeProcess
from tests.waiting import patience, until

EVER = 0xFFFF_FFFF
PATIENCE = 30  # seconds that a client tries to connect

pytestmark = pytest.mark.slow


class Split:
    """A store and two gateways, each started by hand."""

    def __init__(self, folder: Path) -> None:
        place = f"unix:{folder}/s"
        self.store = NodeProcess(folder / "data", "--roles", "store", "--store-listen", place)
        self.gateways = {
            name: NodeProcess(folder / name, "--roles", "gateway", "--store", place, "--place", name) for name in "ab"
        }

    def port(self, name: str) -> int:
        return self.gateways[name].mqtt_port

    async def start(self) -> None:
        await asyncio.to_thread(self.store.start)
        await asyncio.gather(*[asyncio.to_thread(each.start) for each in self.gateways.values()])

    async def stop(self) -> None:
        for each in (*self.gateways.values(), self.store):
            if each.process is not None:
                await asyncio.to_thread(each.stop)


@pytest.fixture
async def split(tmp_path: Path) -> AsyncIterator[Split]:
    found = Split(tmp_path)
    try:
        await found.start()
        yield found
    finally:
        await found.stop()


async def client(split: Split, gateway: str, name: bytes, **options: object) -> RawClient:
    """A client with a session that stays. It tries again while it is not let in."""
    async with patience():
        while True:
            try:
                found = await RawClient.open(split.port(gateway), 5)
                found.send(connect(5, name, False, **{"expiry": EVER, **options}))  # type: ignore[arg-type]
                found.connack = await found.packet()
                if found.connack.reason == 0:
                    return found
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(0.05)


async def publish(split: Split, gateway: str, topic: bytes, *payloads: bytes, qos: int = 1) -> None:
    publisher = await client(split, gateway, b"publisher at " + gateway.encode(), expiry=0)
    for number, payload in enumerate(payloads):
        await publisher.publish(topic, payload, qos, number + 1)
    await publisher.disconnect()


async def test_a_client_moves_and_a_killed_gateway_has_its_will_sent_once(split: Split) -> None:
    old = await client(split, "a", b"c")
    await old.subscribe((b"t/#", 1))
    new = await client(split, "b", b"c")
    assert (await old.expect(DISCONNECT)).reason == ReasonCode.SESSION_TAKEN_OVER
    assert new.session_present
    await publish(split, "a", b"t/1", b"1")
    assert [m.payload for m in await new.take(1)] == [b"1"]
    watcher = await client(split, "b", b"w")
    await watcher.subscribe((b"wills/#", 1))
    await client(split, "a", b"dies", will=(b"wills/dies", b"gone"))
    split.gateways["a"].kill()
    assert [(m.topic, m.payload) for m in await watcher.take(1)] == [(b"wills/dies", b"gone")]
    back = await client(split, "b", b"dies")
    assert back.session_present
    await split_started(split, "a")
    await publish(split, "a", b"t/2", b"2")
    assert [m.payload for m in await new.take(1)] == [b"2"]
    await watcher.quiet()
    for each in (new, watcher, back):
        await each.disconnect()


async def split_started(split: Split, name: str) -> None:
    await asyncio.to_thread(split.gateways[name].start)


async def test_qos_2_continues_at_another_gateway_when_one_is_killed(split: Split) -> None:
    reader = await client(split, "b", b"r")
    await reader.subscribe((b"t", 2))
    old = await client(split, "a", b"c")
    await old.subscribe((b"to/c", 2))
    old.send(wire.publish(5, b"t", b"in", 2, 7))
    await old.expect(PUBREC)
    await publish(split, "b", b"to/c", b"out", qos=2)
    message = await old.message()
    split.gateways["a"].kill()
    new = await client(split, "b", b"c")
    assert new.session_present
    new.send(wire.publish(5, b"t", b"in", 2, 7))
    new.send(ack(PUBREL, 7))
    kinds: Counter[int] = Counter()
    while kinds[PUBCOMP] < 1 or kinds[PUBREL] < 1:
        packet = await new.packet()
        kinds[packet.kind] += 1
        if packet.kind == 3:
            again = new.parse(packet)
            assert (again.payload, again.dup, again.packet_id) == (b"out", True, message.packet_id)
            new.send(ack(PUBREC, again.packet_id))
        elif packet.kind == PUBREL:
            new.send(ack(PUBCOMP, packet.packet_id))
    await new.settle()
    assert [m.payload for m in await reader.take(1)] == [b"in"]
    await reader.settle()
    for each in (new, reader):
        await each.disconnect()


async def test_a_killed_store_costs_no_connection_and_nothing_acknowledged(split: Split) -> None:
    reader = await client(split, "b", b"r")
    await reader.subscribe((b"t", 1))
    sender = await client(split, "a", b"s")
    await sender.publish(b"t", b"before", 1, 1)
    split.store.kill()
    sender.send(wire.publish(5, b"t", b"meanwhile", 1, 2))
    await sender.quiet()  # it is there, and has no PUBACK
    await asyncio.to_thread(split.store.start)
    assert (await sender.expect(PUBACK)).packet_id == 2
    await sender.publish(b"t", b"after", 1, 3)
    assert [m.payload for m in await reader.take(3)] == [b"before", b"meanwhile", b"after"]
    await reader.quiet()
    moved = await client(split, "b", b"s")
    assert (await sender.expect(DISCONNECT)).reason == ReasonCode.SESSION_TAKEN_OVER
    for each in (reader, moved):
        await each.disconnect()


class Sender:
    """Publishes numbers at whatever gateway takes it, each until it is acknowledged."""

    def __init__(self, split: Split, name: bytes) -> None:
        self._split = split
        self._name = name
        self.acknowledged = 0
        self.is_over = False

    async def run(self) -> None:
        at = 0
        while not self.is_over:
            at += 1
            connection = await client(self._split, "ab"[at % 2], self._name)
            try:
                while not self.is_over:
                    payload = b"%b %06d" % (self._name, self.acknowledged)
                    connection.send(wire.publish(5, b"load/" + self._name, payload, 1, 1))
                    packet = await connection.packet()
                    if packet.kind != PUBACK:
                        break
                    self.acknowledged += 1
            except (OSError, EOFError, TimeoutError):
                pass
            await connection.drop()


async def test_a_rolling_restart_of_gateways_under_load_loses_nothing(split: Split) -> None:
    reader = await client(split, "a", b"r", receive_maximum=100)
    await reader.subscribe((b"load/#", 1))
    await reader.disconnect()
    senders = [Sender(split, b"s%d" % number) for number in range(4)]
    tasks = [asyncio.create_task(sender.run()) for sender in senders]
    for name in "abab":
        before = [sender.acknowledged for sender in senders]
        await until(lambda: all(s.acknowledged >= n + 20 for s, n in zip(senders, before, strict=True)))
        gateway = split.gateways[name]
        assert await asyncio.to_thread(gateway.stop) == 0
        await asyncio.to_thread(gateway.start)
    for sender in senders:
        sender.is_over = True
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    reader = await client(split, "b", b"r", receive_maximum=100)
    wanted = {b"%b %06d" % (s._name, number) for s in senders for number in range(s.acknowledged)}
    assert len(wanted) > 300
    missing = set(wanted)
    while missing:
        missing.difference_update([m.payload for m in await reader.take(1)])
    await reader.disconnect()


async def test_a_shared_subscription_over_two_gateways(split: Split) -> None:
    members = [await client(split, name, b"m-" + name.encode(), expiry=0) for name in "ab"]
    for member in members:
        await member.subscribe((b"$share/g/t/#", 1))
    got: list[list[bytes]] = [[], []]

    async def read(number: int) -> None:
        while True:
            got[number] += [m.payload for m in await members[number].take(1)]

    readers = [asyncio.create_task(read(number)) for number in range(2)]
    payloads = [b"%03d" % number for number in range(200)]
    await publish(split, "a", b"t/1", *payloads)
    await until(lambda: sum(map(len, got)) >= len(payloads))
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert sorted(got[0] + got[1]) == payloads
    assert min(map(len, got)) >= 40
    for member in members:
        await member.drop()


def test_wrong_settings_are_errors_at_the_start(tmp_path: Path) -> None:
    for flags, what in (
        (("--roles", "gateway"), "split.store"),
        (("--roles", "store"), "split.listen"),
        (("--roles", "store", "--store-listen", "nowhere"), "split.listen"),
        (("--roles", "store", "--gateways", "2"), "split.gateways"),
        (("--gateways", "1000"), "split.gateways"),
    ):
        node = NodeProcess(tmp_path / "data", *flags)
        with pytest.raises(AssertionError, match="ended before it was ready"):
            node.start()
        assert node.process is not None
        assert node.process.wait(10) == 2
        assert what in node.log()
        node.log_path.unlink()


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", "--gateways", "2")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", node.mqtt_port))
        other.listen()
        with pytest.raises(AssertionError, match="ended before it was ready"):
            node.start()
    assert node.process is not None
    assert node.process.wait(10) == 1
    assert "sluice: cannot serve: cannot listen on" in node.log()
