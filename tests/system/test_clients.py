"""The clients people use, against a node: paho-mqtt, aiomqtt, amqtt and mosquitto's, 3.1.1 and 5.0."""

import queue
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.system.conftest import NodeProcess
from tests.system.tools import program
from tests.waiting import PATIENCE_S, patience

VERSIONS = [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]


class PahoClient:
    """A connected paho client whose messages land in a queue."""

    def __init__(self, port: int, version: MQTTProtocolVersion, client_id: str, **connect: Any) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.connected: queue.Queue[Any] = queue.Queue()
        self.subscribed: queue.Queue[Any] = queue.Queue()
        clean = {} if version == MQTTProtocolVersion.MQTTv5 else {"clean_session": connect.pop("clean", True)}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **clean)
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_connect = lambda _c, _u, flags, reason, _p: self.connected.put((flags, reason))
        self.client.on_subscribe = lambda _c, _u, _m, reasons, _p: self.subscribed.put(reasons)
        self.client.connect("127.0.0.1", port, **connect)
        self.client.loop_start()
        self.flags, self.reason = self.connected.get(timeout=PATIENCE_S)

    def subscribe(self, *args: Any, **kwargs: Any) -> Any:
        self.client.subscribe(*args, **kwargs)
        return self.subscribed.get(timeout=PATIENCE_S)

    def publish(self, *args: Any, **kwargs: Any) -> None:
        self.client.publish(*args, **kwargs).wait_for_publish(PATIENCE_S)

    def get(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One for all tests here: each has topics and sessions of its own."""
    started = NodeProcess(tmp_path_factory.mktemp("clients") / "node")
    started.start()
    yield started
    started.kill()


@pytest.fixture
def paho_client(node: Any) -> Any:
    clients: list[PahoClient] = []

    def make(version: MQTTProtocolVersion, client_id: str, **connect: Any) -> PahoClient:
        clients.append(PahoClient(node.mqtt_port, version, client_id, **connect))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.mark.mqtt5("4.2.0-1")
@pytest.mark.mqtt311("7.0.0-2", "7.1.1-1")
@pytest.mark.parametrize("version", VERSIONS)
def test_paho_sends_and_receives_each_qos(paho_client: Callable[..., PahoClient], version: MQTTProtocolVersion) -> None:
    subscriber = paho_client(version, "subscriber")
    subscriber.subscribe([("home/+/temp", 2), ("exact", 1)])
    publisher = paho_client(version, "publisher")
    for qos in (0, 1, 2):
        publisher.publish("home/bath/temp", f"{qos}", qos=qos)
        message = subscriber.get()
        assert (message.topic, message.payload, message.qos) == ("home/bath/temp", f"{qos}".encode(), qos)
    publisher.publish("exact", "x", qos=2)
    assert subscriber.get().qos == 1  # the minimum of both


@pytest.mark.parametrize("version", VERSIONS)
def test_paho_gets_retained_messages_and_wills(
    paho_client: Callable[..., PahoClient], version: MQTTProtocolVersion
) -> None:
    state = f"state{version}"
    publisher = paho_client(version, "publisher")
    publisher.publish(f"{state}/a", "on", qos=1, retain=True)
    publisher.publish(f"{state}/b", "gone", qos=1, retain=True)
    publisher.publish(f"{state}/b", "", qos=1, retain=True)
    subscriber = paho_client(version, "subscriber")
    subscriber.subscribe(f"{state}/#", qos=1)
    message = subscriber.get()
    assert (message.topic, message.payload, message.retain) == (f"{state}/a", b"on", True)
    publisher.publish(f"{state}/c", "live", qos=1, retain=True)
    message = subscriber.get()
    assert (message.topic, message.retain) == (f"{state}/c", False)


def test_a_will_is_published_when_the_connection_breaks(node: Any, paho_client: Callable[..., PahoClient]) -> None:
    subscriber = paho_client(VERSIONS[1], "subscriber")
    subscriber.subscribe("wills/#", qos=1)
    dying = paho.Client(CallbackAPIVersion.VERSION2, client_id="dying", protocol=VERSIONS[1])
    connected: queue.Queue[Any] = queue.Queue()
    dying.on_connect = lambda *_: connected.put(True)
    dying.will_set("wills/dying", "broken", qos=1)
    dying.connect("127.0.0.1", node.mqtt_port)
    dying.loop_start()
    connected.get(timeout=PATIENCE_S)
    dying.loop_stop()
    dying.socket().close()
    message = subscriber.get()
    assert (message.topic, message.payload) == ("wills/dying", b"broken")


@pytest.mark.mqtt5("3.1.2-5", "3.1.2-23")
@pytest.mark.mqtt311("3.1.2-4", "3.1.2-5", "3.2.2-2")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_persistent_session_gets_what_it_missed(
    paho_client: Callable[..., PahoClient], version: MQTTProtocolVersion
) -> None:
    connect: dict[str, Any] = {"clean": False}
    if version == MQTTProtocolVersion.MQTTv5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        connect = {"clean_start": False, "properties": properties}
    away = paho_client(version, f"away{version}", **connect)
    assert not away.flags.session_present
    away.subscribe([("home/#", 1), ("exact/topic", 1)])
    away.close()
    publisher = paho_client(version, "publisher")
    for number in range(100):
        publisher.publish("home/a", str(number), qos=1)
    publisher.publish("exact/topic", "last", qos=1)
    back = paho_client(version, f"away{version}", **dict(connect))
    assert back.flags.session_present
    received = [back.get() for _ in range(101)]
    assert [m.payload for m in received if m.topic == "home/a"] == [str(number).encode() for number in range(100)]
    assert [m.payload for m in received if m.topic == "exact/topic"] == [b"last"]
    assert not any(m.dup for m in received)


@pytest.mark.mqtt5("3.3.2-15", "3.3.2-16", "3.3.2-17", "3.3.2-18", "3.3.2-20", "3.3.4-3")
def test_mqtt5_properties_travel(paho_client: Callable[..., PahoClient]) -> None:
    subscriber = paho_client(VERSIONS[1], "subscriber")
    identified = Properties(PacketTypes.SUBSCRIBE)
    identified.SubscriptionIdentifier = 7
    subscriber.subscribe("req/#", options=paho.SubscribeOptions(qos=1), properties=identified)
    publisher = paho_client(VERSIONS[1], "publisher")
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic = "answer/1"
    properties.CorrelationData = b"\x00\x01"
    properties.ContentType = "application/json"
    properties.MessageExpiryInterval = 60
    properties.UserProperty = [("b", "2"), ("a", "1"), ("b", "3")]
    publisher.publish("req/1", "{}", qos=1, properties=properties)
    got = subscriber.get().properties
    assert got.ResponseTopic == "answer/1"
    assert got.CorrelationData == b"\x00\x01"
    assert got.ContentType == "application/json"
    assert got.UserProperty == [("b", "2"), ("a", "1"), ("b", "3")]
    assert got.SubscriptionIdentifier == [7]
    assert 1 <= got.MessageExpiryInterval <= 60


def test_a_second_connection_takes_the_session_over(paho_client: Callable[..., PahoClient]) -> None:
    first = paho_client(VERSIONS[1], "same")
    gone: queue.Queue[Any] = queue.Queue()
    first.client.on_disconnect = lambda _c, _u, _f, reason, _p: gone.put(reason)
    first.client.reconnect_delay_set(min_delay=100)
    paho_client(VERSIONS[1], "same")
    assert gone.get(timeout=PATIENCE_S).value == 0x8E


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
async def test_aiomqtt(node: Any, version: aiomqtt.ProtocolVersion) -> None:
    async with patience(), aiomqtt.Client("127.0.0.1", node.mqtt_port, protocol=version) as client:
        await client.subscribe("+/measured", qos=2)
        for qos in (0, 1, 2):
            await client.publish("room/measured", f"{qos}", qos=qos)
        received = [(await anext(aiter(client.messages))).payload for _ in range(3)]
    assert received == [b"0", b"1", b"2"]


async def test_amqtt_client(node: Any) -> None:
    client = MQTTClient(config={"auto_reconnect": False})
    async with patience():
        await client.connect(f"mqtt://127.0.0.1:{node.mqtt_port}/")
        await client.subscribe([("room/#", 2)])
        for qos in (0, 1, 2):
            await client.publish("room/a", f"{qos}".encode(), qos=qos)
        received = [(await client.deliver_message()).data for _ in range(3)]
        await client.disconnect()
    assert [bytes(data) for data in received] == [b"0", b"1", b"2"]


async def test_amqtt_client_over_websocket(node: Any) -> None:
    client = MQTTClient(config={"auto_reconnect": False})
    async with patience():
        await client.connect(f"ws://127.0.0.1:{node.ws_port}/mqtt")
        await client.subscribe([("room/#", 1)])
        await client.publish("room/a", b"x" * 100_000, qos=1)
        message = await client.deliver_message()
        await client.disconnect()
    assert bytes(message.data) == b"x" * 100_000


@pytest.mark.mqtt311("7.0.0-2")
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_clients(node: Any, version: str, qos: str) -> None:
    common = ["-h", "127.0.0.1", "-p", str(node.mqtt_port), "-V", version, "-q", qos]
    with subprocess.Popen(
        [
            "stdbuf",
            "-oL",
            program("mosquitto_sub"),
            *common,
            "-d",
            "-t",
            "a/+",
            "-C",
            "2",
            "-W",
            "20",
            "-F",
            "message %t %p",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as subscriber:
        assert subscriber.stdout is not None
        lines = iter(subscriber.stdout.readline, "")
        for line in lines:
            if "SUBACK" in line:
                break
        for text in ("one", "two"):
            subprocess.run([program("mosquitto_pub"), *common, "-t", "a/b", "-m", text], check=True, timeout=PATIENCE_S)
        received = [line.strip() for line in lines if line.startswith("message")]
        assert subscriber.wait(20) == 0
    assert received == ["message a/b one", "message a/b two"]
