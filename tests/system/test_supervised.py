"""`sluice serve --gateways N`: one command, one port, as many processes as there are cores for."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from tests.system.conftest import NodeProcess
from tests.system.tools import program
from tests.waiting import PATIENCE_S, block_until

pytestmark = pytest.mark.slow


def children(node: NodeProcess) -> dict[str, int]:
    """The processes as the node's log has them, the newest of each."""
    return {name: int(pid) for name, pid in re.findall(r"(\w+) is ready, process (\d+)", node.log())}


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def get(node: NodeProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}{path}", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def connections(node: NodeProcess) -> dict[str, int]:
    """By gateway."""
    found = re.findall(r'sluice_mqtt_connections\{gateway="(\w+)"\} (\d+)', get(node, "/metrics"))
    return {name: int(count) for name, count in found}


def connected(node: NodeProcess, count: int) -> None:
    """Wait until the gateways have told of so many connections."""
    block_until(lambda: sum(connections(node).values()) == count)


def test_mosquitto_and_paho_over_two_gateways(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node("node", "--gateways", "2")
    line = node.start()
    assert f"mqtt=127.0.0.1:{node.mqtt_port} " in line
    assert f"grpc=127.0.0.1:{node.grpc_port} " in line
    assert line.endswith("gateways=2\n")
    processes = children(node)
    assert processes.keys() == {"store", "g1", "g2"}
    assert json.loads(get(node, "/health"))["status"] == "ok"

    got: list[bytes] = []
    enough = threading.Event()
    subscribed = threading.Semaphore(0)
    subscribers = []

    def on_message(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        got.append(message.payload)
        if len(got) == 4 * len(subscribers):
            enough.set()

    while len([count for count in connections(node).values() if count]) < 2:  # the kernel spreads them
        subscriber = paho.Client(paho.CallbackAPIVersion.VERSION2, f"sub-{len(subscribers)}", protocol=paho.MQTTv5)
        subscriber.on_message = on_message
        subscriber.on_subscribe = lambda *_: subscribed.release()
        subscriber.connect("127.0.0.1", node.mqtt_port)
        subscriber.loop_start()
        subscriber.subscribe("news/#", 1)
        assert subscribed.acquire(timeout=PATIENCE_S)
        subscribers.append(subscriber)
        assert len(subscribers) < 64
        connected(node, len(subscribers))
    publish = program("mosquitto_pub")
    for number in range(4):
        to = ("-p", str(node.mqtt_port), "-t", "news/today", "-m", str(number), "-q", "1")
        subprocess.run([publish, *to], check=True, timeout=PATIENCE_S)
    assert enough.wait(PATIENCE_S)
    assert sorted(got) == sorted([b"0", b"1", b"2", b"3"] * len(subscribers))
    connected(node, len(subscribers))
    ways = re.findall(r'sluice_gateway_(\w+)\{gateway="(\w+)"\} 0\.0', get(node, "/metrics"))
    assert {(name, gateway) for name in ("reconnects_total", "gaps_total") for gateway in ("g1", "g2")} <= set(ways)
    figures = get(node, "/metrics")
    assert set(re.findall(r'sluice_service_calls\{gateway="(\w*)"\} 0\.0', figures)) == {"g1", "g2"}
    failed = r'sluice_service_logins_failed_total\{front="(\w+)",gateway="(\w*)"\}'
    assert {("http", ""), ("grpc", "g1"), ("grpc", "g2")} <= set(re.findall(failed, figures))
    processor = re.findall(r'process_cpu_seconds_total\{gateway="(\w*)"\} [0-9.]*[1-9]', figures)
    assert sorted(processor) == ["", "g1", "g2"]
    delivered = r'sluice_mqtt_delivery_seconds_count\{gateway="(\w+)"\} [1-9]'
    block_until(lambda: sorted(re.findall(delivered, get(node, "/metrics"))) == ["g1", "g2"])
    assert 'sluice_topic_messages_total{topic="news"} 4.0' in figures
    for subscriber in subscribers:
        subscriber.disconnect()
        subscriber.loop_stop()
    assert node.stop() == 0
    for name in processes:
        assert f"[{name}] gateway.node.process: stopping" in node.log()
    assert not any(is_there(pid) for pid in processes.values())


def test_killed_processes_are_started_again(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node("node", "--gateways", "2")
    node.start()
    publish, subscribe = program("mosquitto_pub"), program("mosquitto_sub")
    at = ("-p", str(node.mqtt_port), "-t", "kept", "-q", "1")
    subprocess.run([subscribe, *at, "-i", "reader", "-c", "-E"], check=True, timeout=PATIENCE_S)
    for name in ("g1", "g2", "store"):
        old = children(node)
        os.kill(old[name], signal.SIGKILL)
        block_until(lambda name=name, old=old: children(node)[name] != old[name])  # type: ignore[misc]
        assert {key: pid for key, pid in children(node).items() if key != name} == {
            key: pid for key, pid in old.items() if key != name
        }
        subprocess.run([publish, *at, "-m", name, "-V", "5"], check=True, timeout=PATIENCE_S)
    taken = subprocess.run(
        [subscribe, *at, "-i", "reader", "-c", "-C", "3", "-W", "60"],
        check=True,
        timeout=PATIENCE_S,
        capture_output=True,
    )
    assert taken.stdout.split() == [b"g1", b"g2", b"store"]
    assert node.stop() == 0


def test_all_processes_stop_when_the_supervisor_is_killed(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node("node", "--gateways", "2")
    node.start()
    processes = children(node)
    node.kill()
    block_until(lambda: not any(is_there(pid) for pid in processes.values()))


def test_a_node_that_cannot_start_says_so(make_node: Callable[..., NodeProcess]) -> None:
    """It ends: the process that failed is not started again."""
    node = make_node("node", "--gateways", "1")
    with socket.create_server(("127.0.0.1", node.http_port)):
        made = subprocess.run(node.command(), check=False, timeout=PATIENCE_S, capture_output=True, text=True)
    assert made.returncode == 1
    assert "store ended with exit code 1: the node cannot start" in made.stderr
    assert "started again" not in made.stderr


def test_a_signal_to_all_processes_stops_the_store_last(
    make_node: Callable[..., NodeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an init system may send it. Gateways that lose their store first would wait for it until they are killed."""
    monkeypatch.setenv("SLUICE_SPLIT_GRACE_S", "3600")
    node = make_node("node", "--gateways", "2")
    node.start()
    for pid in children(node).values():
        os.kill(pid, signal.SIGTERM)
    assert node.stop() == 0
    assert "is killed" not in node.log()


def test_gateways_end_when_supervisor_and_store_are_killed(
    make_node: Callable[..., NodeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SPLIT_GRACE_S", "3600")  # for which they would wait for the store
    node = make_node("node", "--gateways", "2")
    node.start()
    processes = children(node)
    os.kill(processes["store"], signal.SIGKILL)
    node.kill()
    try:
        block_until(lambda: not any(is_there(pid) for pid in processes.values()))
    finally:
        for pid in processes.values():
            if is_there(pid):
                os.kill(pid, signal.SIGKILL)


def test_all_processes_read_the_configuration_again(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    """SIGHUP and `sluice config reload`; and a gateway that is started later has what was read last."""
    path = tmp_path / "sluice.toml"
    path.write_text("")
    node = make_node("node", "--gateways", "2", "--config", str(path))
    node.start()
    assert node.process is not None

    def processes(text: str) -> set[str]:
        return set(re.findall(rf"INFO \[(\w+)\] \S+: {text}", node.log_path.read_text()))

    path.write_text("[mqtt]\nmax_keep_alive = 9\n")
    os.kill(node.process.pid, signal.SIGHUP)
    block_until(lambda: processes(r"settings changed: mqtt\.max_keep_alive\n") == {"store", "g1", "g2"})

    path.write_text("[mqtt]\nmax_sessions = 0\nmax_connections = 7\n[http]\nconsole = false\n")
    command = [sys.executable, "-m", "sluice", "config", "reload", "--data-dir", str(node.data_dir), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    changed = ["mqtt.max_connections", "mqtt.max_sessions", "mqtt.max_keep_alive"]
    assert json.loads(done.stdout) == {"changed": changed, "needs_restart": ["http.console"]}
    block_until(lambda: processes("settings changed: mqtt.max_connections, ") == {"store", "g1", "g2"})

    pid = children(node)["g1"]
    os.kill(pid, signal.SIGKILL)
    block_until(lambda: children(node)["g1"] != pid)
    os.kill(children(node)["g2"], signal.SIGKILL)  # all clients come to the new one, or to the next g2
    refused = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "a", protocol=paho.MQTTv5)
    client.on_connect = lambda _client, _data, _flags, reason, _properties: (
        refused.set() if reason == "Quota exceeded" else None
    )
    properties = paho.Properties(paho.PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 60
    client.connect_async("127.0.0.1", node.mqtt_port, clean_start=True, properties=properties)
    client.loop_start()
    assert refused.wait(PATIENCE_S)
    client.loop_stop()

    path.write_text("[mqtt]\nprot = 9\n")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "unknown setting 'mqtt.prot'" in done.stderr
    os.kill(node.process.pid, signal.SIGHUP)
    block_until(lambda: "the configuration stays as it is: unknown setting 'mqtt.prot'" in node.log())
    assert node.stop() == 0
