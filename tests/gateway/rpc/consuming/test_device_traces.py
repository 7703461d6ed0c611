"""Traces of messages between devices: the publisher, and the sessions that got and acknowledged a message."""

import asyncio

import pytest

from cloud_sdk import Client, Happened
from gateway.node.node import Node
from tests.gateway.mqtt import wire
from tests.gateway.raw import PUBACK, PUBCOMP, PUBREC, PUBREL, RawClient, ack
from tests.waiting import patience

EVER = 0xFFFF_FFFF


async def test_a_trace_has_the_sessions_that_got_the_message(node: Node) -> None:
    topics = await RawClient.connect(node.ports.mqtt, b"lamp", 5, False, expiry=EVER)
    await topics.subscribe((b"home/bath/lamp", 1))
    wild = await RawClient.connect(node.ports.mqtt, b"hall", 5, False, expiry=EVER)
    await wild.subscribe((b"home/+/lamp", 1))
    away = await RawClient.connect(node.ports.mqtt, b"away", 5, False, expiry=EVER)
    await away.subscribe((b"home/#", 1))
    await away.disconnect()
    sender = await RawClient.connect(node.ports.mqtt, b"switch", 5)
    for number in (1, 2):
        sender.send(wire.publish(5, b"home/bath/lamp", b"%d" % number, 1, number))
        await sender.expect(PUBACK)
    for session in (topics, wild):
        await session.take(2)
        await session.settle()
        await session.disconnect()
    late = await RawClient.connect(node.ports.mqtt, b"late", 5, False, expiry=EVER)
    await late.subscribe((b"home/+/lamp", 1))
    await late.disconnect()
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client, patience():
        (first, _) = await client.find_between("home", 0, 1 << 45)
        while True:
            events = await client.trace(first.position)
            told = {event.who: event.queue for event in events if event.happened is Happened.ACKNOWLEDGED}
            if len(told) == 2:
                break
            await asyncio.sleep(0.05)
    assert (events[0].happened, events[0].who) == (Happened.STORED, "switch")
    assert told == {"lamp": "home/bath/lamp", "hall": "home/+/lamp"}


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_trace_has_shared_subscriptions(node: Node, qos: int) -> None:
    member = await RawClient.connect(node.ports.mqtt, b"worker", 5, False, expiry=EVER)
    await member.subscribe((b"$share/crew/jobs/#", qos))
    sender = await RawClient.connect(node.ports.mqtt, b"boss", 5)
    sender.send(wire.publish(5, b"jobs/1", b"x", qos, 1))
    await sender.expect(PUBACK if qos == 1 else PUBREC)
    if qos == 2:
        sender.send(ack(PUBREL, 1))
        await sender.expect(PUBCOMP)
    await member.take(1)
    await member.settle()
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client, patience():
        (message,) = await client.find_between("jobs", 0, 1 << 45)
        while True:
            events = await client.trace(message.position)
            happened = [(event.happened, event.who) for event in events[1:]]
            if (Happened.FINISHED, "$share/crew/jobs/#") in happened:
                break
            await asyncio.sleep(0.05)
    assert happened[0] == (Happened.LEASED, "$share/crew/jobs/#")
    if qos == 2:
        assert (Happened.SENT, "worker") in happened
