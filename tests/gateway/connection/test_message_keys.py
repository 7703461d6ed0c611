"""A device's MQTT 5 user property `key` is what services find its message by."""

from cloud_sdk import Client
from gateway.node.node import Node
from tests.gateway.raw import RawClient

KEY = b"\x26\x00\x03key\x00\x08order-17"
ALIAS = b"\x23\x00\x01"


async def test_a_message_of_a_device_is_found_by_its_key(node: Node) -> None:
    device = await RawClient.connect(node.ports.mqtt, b"d", 5)
    await device.publish(b"shop/till", b"12.90", properties=b"\x01\x01" + KEY + ALIAS)
    await device.publish(b"shop/till", b"none", packet_id=2)
    await device.publish(b"", b"again", packet_id=3, properties=ALIAS + KEY)  # the topic is its alias
    async with Client(f"127.0.0.1:{node.ports.grpc}") as client:
        found = await client.find("shop", key="order-17")
        assert [(message.payload, message.publisher, message.keys) for message in found] == [
            (b"12.90", "d", ["order-17"]),
            (b"again", "d", ["order-17"]),
        ]
        assert (await client.message(found[1].position)).topic == "shop/till"
