"""Traces over several processes: each makes the spans of what it does, and they are of one trace."""

from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.otlp import PARENT, SAMPLED, TRACE, Collector, collecting
from tests.system.clusters import Cluster
from tests.system.conftest import NodeProcess
from tests.waiting import PATIENCE_S, block_until

pytestmark = pytest.mark.slow


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def connected(node: NodeProcess, name: str) -> paho.Client:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
    client.connect("127.0.0.1", node.mqtt_port)
    client.loop_start()
    block_until(client.is_connected)
    return client


def trace_a_message(publisher: NodeProcess, subscriber: NodeProcess, collector: Collector) -> dict[str, str]:
    """Publish a traced message and wait for its spans. Returns the process that made each."""
    panel, meter = connected(subscriber, "panel"), connected(publisher, "meter")
    got: list[bytes] = []
    panel.on_message = lambda _client, _data, message: got.append(message.payload)
    granted: list[object] = []
    panel.on_subscribe = lambda *_: granted.append(1)
    panel.subscribe("home/#", 1)
    block_until(lambda: granted)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("traceparent", SAMPLED)]
    meter.publish("home/bath", b"1", 1, properties=properties).wait_for_publish(PATIENCE_S)
    block_until(lambda: len(collector.spans) >= 5)
    for client in (panel, meter):
        client.disconnect()
        client.loop_stop()
    assert got == [b"1"]
    spans = {each.name.split(" ")[0]: each for each in collector.spans}
    assert {each.trace for each in spans.values()} == {TRACE}
    assert [spans[name].parent for name in ("append", "commit", "deliver")] == [PARENT] * 3
    assert spans["flush"].parent == spans["commit"].id
    assert spans["acknowledge"].parent == spans["deliver"].id
    return {name: each.process.split(" ")[1] for name, each in spans.items()}


def test_store_and_gateways(
    make_node: Callable[..., NodeProcess], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_OTEL_ENDPOINT", collector.url)
    node = make_node("node", "--gateways", "1")
    node.start()
    made = trace_a_message(node, node, collector)
    assert made == {"append": "g1", "commit": "store", "flush": "store", "deliver": "g1", "acknowledge": "g1"}
    assert node.stop() == 0


def test_a_cluster(tmp_path: Path, collector: Collector) -> None:
    """A device at one node, a subscriber at another one, and a third that leads."""
    cluster = Cluster.of_three(tmp_path, settings=f"\n[otel]\nendpoint = '{collector.url}'\nservice_name = 'fleet'\n")
    try:
        cluster.start()
        leader = cluster.leader()
        first, second = (node for node in cluster.nodes if node is not leader)
        made = trace_a_message(first, second, collector)
    finally:
        cluster.stop()
    store, one, other = f"{leader.name}.store", f"{first.name}.g1", f"{second.name}.g1"
    assert made == {"append": one, "commit": store, "flush": store, "deliver": other, "acknowledge": other}
    assert {each.process.split(" ")[0] for each in collector.spans} == {"fleet"}
