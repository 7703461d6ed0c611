"""What a service does with RocketMQ's own Python client, in a process of its own: that client brings the same protobuf
names as a node's stubs. Run as `rocketmq_service.py SCENARIO GRPC_PORT MQTT_PORT`; a scenario that fails raises."""

import os
import sys
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

import paho.mqtt.client as paho
import pytest
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import BadRequestException, ForbiddenException

GRPC, MQTT = (int(each) for each in sys.argv[2:4])
ALL = FilterExpression("*")


def configuration(credentials: Any = None) -> Any:
    return ClientConfiguration(f"127.0.0.1:{GRPC}", credentials or Credentials(), request_timeout=10)


def producer(*topics: str, checker: Any = None, credentials: Any = None) -> Any:
    made = Producer(configuration(credentials), topics, checker)
    made.startup()
    return made


def consumer(group: str, expression: Any = ALL, topic: str = "home", wait_s: int = 10, credentials: Any = None) -> Any:
    """One whose group has begun: what is sent from now on is its."""
    made = SimpleConsumer(configuration(credentials), group, {topic: expression}, await_duration=wait_s)
    made.startup()
    begin = SimpleConsumer(configuration(credentials), group, {topic: expression}, await_duration=1)
    begin.startup()
    assert begin.receive(1, 10) == []
    begin.shutdown()
    return made


def message(text: str, topic: str = "home", properties: dict[str, str] | None = None, **fields: Any) -> Any:
    made = Message()
    made.topic = topic
    made.body = text.encode()
    for name, value in fields.items():
        setattr(made, name, value)
    for name, value in (properties or {}).items():
        made.add_property(name, value)
    return made


def bodies(messages: Any) -> list[str]:
    return [each.body.decode() for each in messages]


def device(*filters: str) -> tuple[Any, "Queue[Any]"]:
    """An MQTT 5 client that is subscribed, and what it gets."""
    got: Queue[Any] = Queue()
    ready = threading.Event()
    made = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="lamp", protocol=paho.MQTTv5)
    made.on_message = lambda _, __, told: got.put(told)
    made.on_subscribe = lambda *_: ready.set()
    made.on_connect = lambda *_: made.subscribe([(each, 1) for each in filters]) if filters else ready.set()
    made.connect("127.0.0.1", MQTT)
    made.loop_start()
    assert ready.wait(20)
    return made, got


def devices_and_services() -> None:
    lamp, got = device("home/+/lamp")
    service = consumer("group")
    sender = producer("home")
    receipt = sender.send(
        message(
            "on", tag="command", properties={"originMqttTopic": "home/hall/lamp", "responseTopic": "home/hall/answer"}
        )
    )
    told = got.get(timeout=20)
    assert (told.topic, told.payload, told.qos) == ("home/hall/lamp", b"on", 1)
    assert told.properties.ResponseTopic == "home/hall/answer"
    assert ("tag", "command") in told.properties.UserProperty
    properties = paho.Properties(paho.PacketTypes.PUBLISH)
    properties.UserProperty = [("tag", "answer"), ("region", "hz"), ("key", "order-7")]
    lamp.publish(told.properties.ResponseTopic, b"is on", 1, properties=properties).wait_for_publish(20)
    found = service.receive(10, 20)
    while len(found) < 2:
        found += service.receive(10, 20)
    command, answer = found
    assert command.message_id == receipt.message_id
    assert (command.tag, command.properties["originMqttTopic"]) == ("command", "home/hall/lamp")
    assert command.properties["responseTopic"] == "home/hall/answer"
    assert (answer.body, answer.tag, set(answer.keys)) == (b"is on", "answer", {"order-7"})
    assert answer.properties["region"] == "hz"
    assert answer.properties["clientId"] == "lamp"
    assert not answer.corrupted
    for each in found:
        service.ack(each)
    lamp.loop_stop()
    lamp.disconnect()


def leases() -> None:
    service = consumer("group", wait_s=5)
    sender = producer("home")
    sender.send(message("a"))
    (first,) = service.receive(10, 60)
    assert first.delivery_attempt == 1
    service.change_invisible_duration(first, 1)
    (again,) = service.receive(10, 60)
    assert (again.message_id, again.delivery_attempt) == (first.message_id, 2)
    with pytest.raises(BadRequestException):
        service.ack(first)
    service.ack(again)
    sender.send(message("b"))
    assert bodies(service.receive(10, 60)) == ["b"]


def selections() -> None:
    by_tag = consumer("tags", FilterExpression("paid || sent"))
    by_sql = consumer("sql", FilterExpression("region = 'hz' AND price BETWEEN 10 AND 20", FilterType.SQL))
    sender = producer("home")
    for price in (5, 15, 25):
        sender.send(
            message(f"{price}", tag="paid" if price < 20 else "lost", properties={"region": "hz", "price": f"{price}"})
        )
    sender.send(message("else", tag="sent", properties={"region": "bj", "price": "15"}))
    found: list[str] = []
    while len(found) < 3:
        some = by_tag.receive(10, 60)
        found += bodies(some)
        for each in some:
            by_tag.ack(each)
    assert found == ["5", "15", "else"]
    assert bodies(by_sql.receive(10, 60)) == ["15"]
    wrong = SimpleConsumer(
        configuration(), "wrong", {"home": FilterExpression("price >", FilterType.SQL)}, await_duration=1
    )
    wrong.startup()
    with pytest.raises(BadRequestException, match="column"):
        wrong.receive(1, 10)


def later() -> None:
    service = consumer("group", wait_s=20)
    sender = producer("home")
    never = sender.send(message("never", delivery_timestamp=int(time.time()) + 3600))
    sender.send(message("later", delivery_timestamp=int(time.time()) + 2))
    assert sender.recall_message("home", never.recall_handle) == never.message_id
    with pytest.raises(BadRequestException):
        sender.recall_message("home", never.recall_handle)
    assert bodies(service.receive(10, 60)) == ["later"]


class Checker(TransactionChecker):
    """Commits what it is asked about, but what says otherwise."""

    def check(self, message: Any) -> Any:
        return TransactionResolution.ROLLBACK if b"not" in message.body else TransactionResolution.COMMIT


def transactions() -> None:
    service = consumer("group", wait_s=30)
    sender = producer("home", checker=Checker())
    for text, end in (("rolled back", "rollback"), ("committed", "commit")):
        transaction = sender.begin_transaction()
        sender.send(message(text), transaction)
        getattr(transaction, end)()
    sender.send(message("not this one"), sender.begin_transaction())
    sender.send(message("forgotten"), sender.begin_transaction())
    found: list[str] = []
    while len(found) < 2:
        some = service.receive(10, 60)
        found += bodies(some)
        for each in some:
            service.ack(each)
    assert found == ["committed", "forgotten"], found


class Listener(MessageListener):
    def __init__(self, consume: Callable[[Any], bool]) -> None:
        self._consume = consume

    def consume(self, message: Any) -> Any:
        return ConsumeResult.SUCCESS if self._consume(message) else ConsumeResult.FAILURE


def push() -> None:
    consumer("group").shutdown()
    got: Queue[tuple[str, int]] = Queue()

    def consume(message: Any) -> bool:
        got.put((message.body.decode(), message.delivery_attempt))
        return message.body != b"b" or message.delivery_attempt > 1

    pushed = PushConsumer(configuration(), "group", Listener(consume), {"home": ALL})
    pushed.startup()
    sender = producer("home")
    futures = [sender.send_async(message(text)) for text in "abc"]
    for future in futures:
        future.result(20)
    found = [got.get(timeout=30) for _ in range(4)]
    assert sorted(found) == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
    assert found[-1] == ("b", 2)
    pushed.shutdown()


def message_groups() -> None:
    """A group without configuration: `b` fails once and holds up its message group, but no other message."""
    consumer("group").shutdown()
    got: Queue[tuple[str, int]] = Queue()

    def consume(each: Any) -> bool:
        got.put((each.body.decode(), each.delivery_attempt))
        return each.body != b"b" or each.delivery_attempt > 1

    pushed = PushConsumer(configuration(), "group", Listener(consume), {"home": ALL})
    pushed.startup()
    sender = producer("home")
    for text in "abcd":
        sender.send(message(text, message_group="order-7"))
    for text in ("x", "y"):
        sender.send(message(text, message_group="order-8"))
    sender.send(message("z"))
    found = [got.get(timeout=30) for _ in range(8)]
    assert [each for each in found if each[0] in "abcd"] == [("a", 1), ("b", 1), ("b", 2), ("c", 1), ("d", 1)]
    assert [each for each in found if each[0] in "xy"] == [("x", 1), ("y", 1)]
    pushed.shutdown()


def hold() -> None:
    """Takes messages and never ends: to be killed."""

    def consume(message: Any) -> bool:
        print(message.body.decode(), flush=True)
        time.sleep(600)
        return True

    consumer("group").shutdown()
    PushConsumer(configuration(), "group", Listener(consume), {"home": ALL}).startup()
    producer("home").send(message("held"))
    time.sleep(600)


def inherit() -> None:
    service = SimpleConsumer(configuration(), "group", {"home": ALL}, await_duration=20)
    service.startup()
    (found,) = service.receive(1, 60)
    assert (found.body, found.delivery_attempt) == (b"held", 2)


def survive() -> None:
    """The node is killed, and starts again, when this has said that it may: the same objects go on."""
    pushed: Queue[str] = Queue()

    def consume(message: Any) -> bool:
        pushed.put(message.body.decode())
        return True

    service, sender = consumer("group", wait_s=5), producer("home")
    consumer("pushed").shutdown()
    PushConsumer(configuration(), "pushed", Listener(consume), {"home": ALL}).startup()
    sender.send(message("before"))
    assert bodies(service.receive(10, 60)) == ["before"]
    assert pushed.get(timeout=60) == "before"
    sender.send(message("kept"))
    print("ready", flush=True)
    assert sys.stdin.readline() == "go on\n"
    _until_done(lambda: sender.send(message("after")))
    found: set[str] = set()
    while not found >= {"kept", "after"}:
        for each in _until_done(lambda: service.receive(10, 60)):
            found.add(each.body.decode())
            _until_done(lambda each=each: service.ack(each))
    while pushed.get(timeout=60) != "after":
        continue


def move() -> None:
    """It knows one node of a cluster, which is killed when this has said so: the same objects go on at the others."""
    service, sender = consumer("group", wait_s=5), producer("home")
    pushed: Queue[str] = Queue()

    def consume(message: Any) -> bool:
        pushed.put(message.body.decode())
        return True

    consumer("pushed").shutdown()
    PushConsumer(configuration(), "pushed", Listener(consume), {"home": ALL}).startup()
    _until_done(lambda: sender.send(message("before")))
    assert pushed.get(timeout=60) == "before"
    print("ready", flush=True)
    assert sys.stdin.readline() == "go on\n"
    _until_done(lambda: sender.send(message("after")))
    found: set[str] = set()
    while not found >= {"before", "after"}:
        for each in _until_done(lambda: service.receive(10, 60)):
            found.add(each.body.decode())
            _until_done(lambda each=each: service.ack(each))
    while pushed.get(timeout=60) != "after":
        continue


def _until_done(call: Callable[[], Any]) -> Any:
    """The client gives up sooner than a node starts."""
    for _ in range(60):
        try:
            return call()
        except Exception as error:  # noqa: BLE001  whatever the client makes of it
            print(error, file=sys.stderr)
            time.sleep(1)
    raise TimeoutError


def dead_letters() -> None:
    service = consumer("group", wait_s=5)
    sender = producer("home")
    sender.send(message("poison"))
    for attempt in (1, 2):  # as often as the node is told to try
        (found,) = service.receive(10, 60)
        assert found.delivery_attempt == attempt
        service.change_invisible_duration(found, 0)
    assert service.receive(10, 60) == []
    buried = SimpleConsumer(configuration(), "group", {"%DLQ%group": ALL}, await_duration=5)
    buried.startup()
    (letter,) = buried.receive(10, 60)
    assert letter.body == b"poison"
    buried.ack(letter)


def signatures() -> None:
    key = Credentials("AK-1", "s3cret")
    service = consumer("group", credentials=key)
    sender = producer("home", "office", credentials=key)
    sender.send(message("mine"))
    (found,) = service.receive(10, 60)
    assert found.body == b"mine"
    service.ack(found)
    with pytest.raises(ForbiddenException):
        sender.send(message("not mine", topic="office"))
    with pytest.raises(Exception, match="route"):  # the client tells its log why
        producer("home", credentials=Credentials("AK-1", "guess")).send(message("never"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done", flush=True)
    os._exit(0)  # the client's threads wait for their streams
