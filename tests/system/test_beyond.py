"""The examples of `docs/mqtt.md`, with mosquitto's clients against a whole node."""

import subprocess
import sys
from typing import Any

import pytest

from tests.system.tools import program
from tests.waiting import PATIENCE_S


def publish(node: Any, topic: str, text: str, *more: str) -> None:
    common = ["-h", "127.0.0.1", "-p", str(node.mqtt_port), "-q", "1", *more]
    subprocess.run([program("mosquitto_pub"), *common, "-t", topic, "-m", text], check=True, timeout=PATIENCE_S)


def take(node: Any, count: int, *flags: str) -> list[str]:
    """The first messages of a subscriber, as `topic payload`."""
    common = ["-h", "127.0.0.1", "-p", str(node.mqtt_port), "-v", "-W", "20", "-C", str(count)]
    done = subprocess.run(
        [program("mosquitto_sub"), *common, *flags], check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_later_and_from_the_past(node: Any, version: str) -> None:
    publish(node, "$delayed/1/home/lamp", "off", "-V", version)
    publish(node, "home/lamp", "on", "-V", version)
    found = take(node, 2, "-V", version, "-t", "$replay/earliest/home/lamp", "-q", "1")
    assert found == ["home/lamp on", "home/lamp off"]
    assert take(node, 2, "-V", version, "-t", "$replay/-3600/home/#", "-q", "1") == found
    assert take(node, 1, "-V", version, "-t", "$replay/offset:1/home/lamp", "-q", "1") == found[1:]
    *between, end = take(node, 2, "-V", version, "-t", "$replay/offset:1..now/home/lamp", "-q", "1")
    assert between == found[1:]
    assert end.startswith('$replay/end {"replay":"$replay/offset:1..now/home/lamp","messages":1,')


def test_sluice_sub_exits_after_the_last_message_of_a_replay(node: Any) -> None:
    for topic in ("home/lamp", "home/fan"):
        publish(node, topic, "on")
    words = ["-t", "$replay/earliest..now/home/#", "-t", "$replay/earliest..now/nothing"]
    command = [sys.executable, "-m", "sluice", "sub", "--port", str(node.mqtt_port), *words, "--qos", "1"]
    done = subprocess.run(command, check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE, text=True)
    topics = [line.partition(" ")[0] for line in done.stdout.splitlines()]
    assert topics == ["home/lamp", "home/fan", "$replay/end", "$replay/end"]


def test_from_the_past_by_a_property(node: Any) -> None:
    publish(node, "home/lamp", "on")
    wish = ("-D", "subscribe", "user-property", "replay", "-3600")
    assert take(node, 1, "-V", "mqttv5", "-t", "home/#", "-q", "1", *wish) == ["home/lamp on"]


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_an_inbox_message_reaches_its_client(node: Any, version: str) -> None:
    away = ["-i", "lamp", "-c", "-t", "nothing", "-q", "1", "-V", version]
    away += ["-x", "3600"] if version == "mqttv5" else []
    common = ["-h", "127.0.0.1", "-p", str(node.mqtt_port)]
    subprocess.run([program("mosquitto_sub"), *common, *away, "-E"], check=True, timeout=PATIENCE_S)
    publish(node, "$inbox/lamp", "off", "-V", version)
    assert take(node, 1, *away) == ["$inbox/lamp off"]


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_sys_topics_and_topic_lists_are_subscribed_with_mosquitto(node: Any, version: str) -> None:
    publish(node, "home/bath/temp", "1")
    publish(node, "home/bath", "1")
    found = take(node, 1, "-V", version, "-t", "$SYS/broker/version")
    assert found[0].startswith("$SYS/broker/version sluice ")
    found = take(node, 1, "-V", version, "-t", "$topics/home/+")
    assert found == ['$topics/home/bath {"topic":true,"children":true}']
