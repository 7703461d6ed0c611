"""The HTTP front: `/health` and `/metrics`."""

from dataclasses import replace

import aiohttp

from gateway.node.node import Node
from store.errors import StoreFailed
from tests.gateway.raw import RawClient


async def get(node: Node, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{node.ports.http}{path}") as answer:
        return answer.status, await answer.text()


async def test_health_says_whether_the_log_takes_appends(node: Node) -> None:
    status, body = await get(node, "/health")
    assert (status, '"ok"' in body) == (200, True)
    assert node._engine is not None
    node._engine._log.fail(StoreFailed("the disk is gone"))
    status, body = await get(node, "/health")
    assert (status, '"failed"' in body) == (503, True)


async def test_a_disk_with_too_little_room_shows(node: Node) -> None:
    assert '"free_bytes"' not in (await get(node, "/health"))[1]
    assert "\nsluice_store_disk_low 0.0\n" in (await get(node, "/metrics"))[1]
    assert node._engine is not None
    node._engine._config = replace(node._engine._config, retention_free_bytes=1 << 60)
    status, body = await get(node, "/health")
    assert (status, '"free_bytes"' in body) == (200, True)
    assert "\nsluice_store_disk_low 1.0\n" in (await get(node, "/metrics"))[1]


async def test_metrics_count_what_happened(node: Node) -> None:
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await client.subscribe((b"t", 0))
    await client.publish(b"t", b"x", 0)
    await client.take(1)
    status, body = await get(node, "/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
    assert values["sluice_mqtt_connections"] == "1.0"
    assert values["sluice_mqtt_messages_received_total"] == "1.0"
    assert values["sluice_mqtt_messages_sent_total"] == "1.0"
    assert values["sluice_store_messages_total"] == "1.0"
    assert values['sluice_mqtt_messages_dropped_total{reason="qos0_congested"}'] == "0.0"
    assert float(values["sluice_store_log_end"]) > 0
    assert values['sluice_mqtt_listener_connections{listener="mqtt"}'] == "1.0"
    assert values['sluice_mqtt_listener_accepted_total{listener="mqtt"}'] == "1.0"
    assert values['sluice_mqtt_listener_refused_total{listener="ws",reason="late"}'] == "0.0"
    assert (await get(node, "/nothing"))[0] == 404
