"""paho, aiomqtt, amqtt and mosquitto's clients over each transport that they speak: TCP, TLS, WebSocket, both."""

import queue
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.system.secure import SecureNode, secure_node
from tests.system.tools import program
from tests.waiting import PATIENCE_S, patience

BIG = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("secure")) as node:
        yield node


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize("transport", ["mqtt", "mqtts", "ws", "wss"])
def test_paho(secure: SecureNode, transport: str, version: MQTTProtocolVersion) -> None:
    events: queue.Queue[Any] = queue.Queue()
    kind: Any = "websockets" if transport.startswith("ws") else "tcp"
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="c", protocol=version, transport=kind)
    if kind == "websockets":
        client.ws_set_options(path="/mqtt")
    if transport in ("mqtts", "wss"):
        client.tls_set(ca_certs=str(secure.ca), cert_reqs=ssl.CERT_REQUIRED)
    client.on_connect = lambda _c, _u, _f, reason, _p: events.put(reason)
    client.on_subscribe = lambda _c, _u, _m, reasons, _p: events.put([reason.value for reason in reasons])
    client.on_message = lambda _c, _u, message: events.put((message.payload, message.qos))
    client.on_disconnect = lambda _c, _u, _f, reason, _p: events.put(reason)
    client.connect("localhost", secure.port(transport))
    client.loop_start()
    assert not events.get(timeout=PATIENCE_S).is_failure
    client.subscribe("a/#", 2)
    assert events.get(timeout=PATIENCE_S) == [2]
    for qos in (0, 1, 2):
        client.publish("a/b", BIG, qos)
        assert events.get(timeout=PATIENCE_S) == (BIG, qos)
    client.disconnect()
    assert not events.get(timeout=PATIENCE_S).is_failure
    client.loop_stop()


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
@pytest.mark.parametrize("transport", ["mqtts", "ws", "wss"])
async def test_aiomqtt(secure: SecureNode, transport: str, version: aiomqtt.ProtocolVersion) -> None:
    options: dict[str, Any] = {"transport": "websockets", "websocket_path": "/mqtt"} if transport[0] == "w" else {}
    if transport in ("mqtts", "wss"):
        options["tls_context"] = ssl.create_default_context(cafile=str(secure.ca))
    async with (
        patience(),
        aiomqtt.Client("localhost", secure.port(transport), protocol=version, **options) as client,
    ):
        await client.subscribe("a/+", qos=2)
        for qos in (0, 1, 2):
            await client.publish("a/b", BIG, qos=qos)
            message = await anext(aiter(client.messages))
            assert (message.payload, message.qos) == (BIG, qos)


@pytest.mark.parametrize("transport", ["mqtts", "wss"])
async def test_amqtt(secure: SecureNode, transport: str) -> None:
    client = MQTTClient(config={"auto_reconnect": False, "connection": {"cafile": str(secure.ca)}})
    async with patience():
        await client.connect(secure.url(transport), cafile=str(secure.ca))
        await client.subscribe([("a/#", 2)])
        for qos in (0, 1, 2):
            await client.publish("a/b", BIG, qos=qos)
            message = await client.deliver_message()
            assert message is not None
            assert (bytes(message.data or b""), message.qos) == (BIG, qos)
        await client.disconnect()


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_over_tls(secure: SecureNode, version: str) -> None:
    common = ["-h", "localhost", "-p", str(secure.mqtts_port), "--cafile", str(secure.ca), "-V", version, "-q", "2"]
    subprocess.run(
        [program("mosquitto_pub"), *common, "-t", f"kept/{version}", "-m", "kept", "-r", "--tls-alpn", "mqtt"],
        check=True,
        timeout=PATIENCE_S,
    )
    got = subprocess.run(
        [program("mosquitto_sub"), *common, "-t", f"kept/{version}", "-C", "1", "-W", "15", "-F", "%t %p %q %r"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert got.stdout.strip() == f"kept/{version} kept 2 1"


@pytest.mark.mqtt5("3.3.2-15", "3.3.2-16")
def test_mosquitto_rr_asks_and_is_answered(secure: SecureNode) -> None:
    """Request and response with a response topic and correlation data; the answer is given by paho."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="answers", protocol=MQTTProtocolVersion.MQTTv5)
    ready: queue.Queue[bool] = queue.Queue()
    seen: queue.Queue[tuple[str, bytes]] = queue.Queue()

    def answer(_client: paho.Client, _user: object, message: paho.MQTTMessage) -> None:
        properties = paho.Properties(paho.PacketTypes.PUBLISH)
        asked: Any = message.properties
        properties.CorrelationData = asked.CorrelationData
        seen.put((asked.ResponseTopic, asked.CorrelationData))
        client.publish(asked.ResponseTopic, message.payload[::-1], qos=1, properties=properties)

    client.on_message = answer
    client.on_subscribe = lambda *_: ready.put(True)
    client.on_connect = lambda *_: client.subscribe("ask", 1)
    client.connect("127.0.0.1", secure.node.mqtt_port)
    client.loop_start()
    assert ready.get(timeout=PATIENCE_S)
    asked = subprocess.run(
        [
            *(program("mosquitto_rr"), "-V", "5", "-h", "127.0.0.1", "-p", str(secure.node.mqtt_port), "-W", "15"),
            *("-t", "ask", "-e", "answers/17", "-m", "hello", "-q", "1", "-D", "publish", "correlation-data", "no-17"),
            *("-F", "%t %p %D"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    client.disconnect()
    client.loop_stop()
    assert seen.get(timeout=PATIENCE_S) == ("answers/17", b"no-17")
    assert asked.stdout.strip() == "answers/17 olleh no-17"
