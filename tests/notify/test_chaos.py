"""Nothing is lost by events that are: two gateways behind sockets, and whoever subscribes at one gets what is
published at the other, late at the worst."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from notify.event_receiver import EventReceiver
from tests.gateway.raw import PUBACK, RawClient, ack
from tests.gateway.several import Several
from tests.notify.chaos import ChaoticReceiver

EVER = 0xFFFF_FFFF


class Chaotic(Several):
    """All that the gateways are told goes through chaos."""

    seed = 0

    def receiver(self) -> EventReceiver:
        self.seed += 1
        return ChaoticReceiver(Random(self.seed))


async def receive(client: RawClient, count: int) -> list[bytes]:
    """Payloads, in the order in which they came first; each is acknowledged."""
    seen: dict[bytes, None] = {}
    while len(seen) < count:
        message = await client.message()
        seen[message.payload] = None
        client.send(ack(PUBACK, message.packet_id))
    return list(seen)


@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("seed", [1, 20, 300])
async def test_lost_events_lose_no_messages(tmp_path: Path, seed: int, routed: bool) -> None:
    several = Chaotic(tmp_path / "data", far=True, routed=routed)
    several.seed = seed
    await several.open()
    await several.join("a", "b")
    rng = Random(seed)
    durable = await RawClient.connect(several.ports["b"], b"durable", 5, False, expiry=EVER)
    await durable.subscribe((b"t/#", 1))
    exact = await RawClient.connect(several.ports["b"], b"exact", 5, False, expiry=EVER)
    await exact.subscribe((b"t/0", 1), (b"t/1", 1), (b"t/2", 1))
    transient = await RawClient.connect(several.ports["b"], b"transient", 5)
    await transient.subscribe((b"t/#", 1))
    members = [await RawClient.connect(several.ports[name], b"m" + name.encode(), 5) for name in ("a", "b")]
    for member in members:
        await member.subscribe((b"$share/g/t/#", 1))
    publisher = await RawClient.connect(several.ports["a"], b"publisher", 5)
    count = 150
    expected = [b"%d" % n for n in range(count)]

    async def publish() -> None:
        for n in range(count):
            await publisher.publish(b"t/%d" % (n % 3), expected[n], 1, n + 1)
            if rng.random() < 0.1:
                await asyncio.sleep(0.01)

    shared: set[bytes] = set()

    async def share(member: RawClient) -> None:
        while len(shared) < count:
            message = await member.message()
            shared.add(message.payload)
            member.send(ack(PUBACK, message.packet_id))

    sharing = [asyncio.ensure_future(share(member)) for member in members]
    got = await asyncio.gather(publish(), *(receive(client, count) for client in (durable, exact, transient)))
    for name, payloads in zip(("durable", "exact", "transient"), got[1:], strict=True):
        assert sorted(payloads) == sorted(expected), name
    assert got[1] == expected, "the order of the log"
    await asyncio.wait(sharing, return_when=asyncio.FIRST_COMPLETED)
    assert shared == set(expected)
    for task in sharing:
        task.cancel()
    assert several.remote["b"]._event_receiver.gaps > 0
    await several.close()
