"""One durable session whose subscriptions come, go and change, while its connection and its node break, against what
MQTT promises. Seeded: `MODEL_SEEDS=100:200` runs those."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterable

import pytest

from gateway.node.node import Node
from matcher.names import matches
from store.api import Appended, Done
from store.errors import StoreBusy
from tests.gateway.conftest import MakeNode
from tests.gateway.crash import crashed
from tests.gateway.device import Device, Publisher
from tests.gateway.people import set_rules
from tests.gateway.session.pending import pending
from tests.gateway.topics.test_delayed import HeldClock, engine_of

FILTERS = [b"n/a", b"n/+", b"n/b", b"n/a/#", b"+/a", b"n/#"]
TOPICS = [b"n/a", b"n/b", b"n/c"]
STEPS = {
    "publish": 5,
    "publish later": 1,
    "time goes on": 1,
    "poll": 2,
    "ack": 1,
    "ack some": 4,
    "drop": 1,
    "disconnect": 1,
    "take over": 1,
    "subscribe": 3,
    "unsubscribe": 3,
    "pipeline": 3,
    "busy": 2,
    "rules": 1,
    "kill": 2,
}
SEEDS = [int(number) for number in os.environ.get("MODEL_SEEDS", "0:10").split(":")]
_MOST_KILLS = 4
_DENIED = b"n/b"  # a topic that the rules may forbid
_KILL = 0.5  # of what is busy, or has not answered


class Model:
    """The messages that the client of a session may expect."""

    def __init__(self) -> None:
        self.now = 0  # steps
        self.filters: dict[bytes, tuple[int, int]] = {}  # subscribed with QoS > 0: since when without a break, and QoS
        self.any: dict[bytes, int] = {}  # filter → QoS, 0 as well
        self.sent: dict[bytes, tuple[bytes, int, int]] = {}  # payload → topic, QoS, when
        self.lesser: dict[bytes, int] = {}  # topic → when last what was sent with QoS 2 might have come with less
        self.doubted: set[bytes] = set()  # filters of changes that had no answer
        self.repeats: Counter[bytes] = Counter()  # payload → subscriptions that ended while it was pending

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        self.any[topic_filter] = qos
        since, _ = self.filters.pop(topic_filter, (self.now, 0))
        if qos:
            self.filters[topic_filter] = since, qos
        self._refresh()

    def unsubscribe(self, topic_filter: bytes) -> None:
        self.any.pop(topic_filter, None)
        self.filters.pop(topic_filter, None)
        self._refresh()

    def change(self, changes: list[tuple[bytes, int | None]]) -> dict[int, int]:
        """SUBSCRIBEs and UNSUBSCRIBEs (None) one behind the other, and their answers in version 5."""
        answers: dict[int, int] = {}
        for number, (topic_filter, qos) in enumerate(changes):
            if qos is None:
                answers[number] = 0 if topic_filter in self.any else 0x11
                self.unsubscribe(topic_filter)
            else:
                answers[number] = qos
                self.subscribe(topic_filter, qos)
        return answers

    def doubt(self, topic_filter: bytes) -> None:
        """Nobody knows whether it is subscribed to, or with which QoS."""
        self.unsubscribe(topic_filter)
        self.doubted.add(topic_filter)
        self._refresh()

    def _refresh(self) -> None:
        for topic in TOPICS:
            levels = [qos for topic_filter, qos in self.any.items() if matches(topic_filter, topic)]
            is_doubted = any(matches(topic_filter, topic) for topic_filter in self.doubted)
            if is_doubted or (levels and max(levels) < 2):
                self.lesser[topic] = self.now

    def note_sent(self, publisher: Publisher) -> None:
        for topic, payload, qos in publisher.sent[len(self.sent) :]:
            self.sent[payload] = topic.removeprefix(b"$delayed/5/"), qos, self.now
        self._refresh()

    def due(self) -> set[bytes]:
        """Messages that have to come, with QoS 1 or 2."""
        rows = self.filters.items()
        return {
            payload
            for payload, (topic, qos, when) in self.sent.items()
            if qos and any(since < when and matches(topic_filter, topic) for topic_filter, (since, _) in rows)
        }

    def check(self, seen: list[tuple[bytes, bytes, int]]) -> None:
        """`seen`: topic, payload, QoS, in the order in which the application got them."""
        for payload, count in Counter(payload for _, payload, _ in seen).items():
            topic, qos, when = self.sent[payload]
            if qos == 2 and self.lesser.get(topic, -1) < when:
                assert count <= 1 + self.repeats[payload], f"{payload!r} came {count} times"
        for topic, payload, qos in seen:
            assert self.sent[payload][0] == topic
            assert qos <= self.sent[payload][1]


class Scenario:
    """A device, who publishes, and what becomes of them."""

    def __init__(self, make_node: MakeNode, clock: HeldClock, seed: int) -> None:
        self.make_node = make_node
        self.clock = clock
        self.chance = random.Random(seed)
        self.window = self.chance.choice([1, 3, 10, 40])
        self.model = Model()
        self.kills = 0
        self.is_denied = False
        self.again: dict[bytes, int] = {}  # what a kill found without its PUBACK → how many had been seen by then
        self.node: Node
        self.device: Device
        self.publisher: Publisher

    async def run(self) -> None:
        self.node = await self.make_node(mqtt__max_in_flight=self.window)
        self.device = Device(self.node.ports.mqtt, b"d", self.chance.choice([4, 5]), self.window)
        self.publisher = Publisher(self.node.ports.mqtt, b"p")
        await self.device.connect()
        first = self.chance.sample(FILTERS, self.chance.randint(1, 3))
        for topic_filter in first:
            await self.subscribe(topic_filter, self.chance.choice([1, 2, 2, 2]))
        self.kept = self.chance.choice([b"", *first])  # stays as it is
        for step in self.chance.choices(list(STEPS), list(STEPS.values()), k=40):
            self.model.now += 1
            await self.step(step)
        await self.end()

    async def subscribe(self, topic_filter: bytes, qos: int) -> None:
        if not qos:
            await self.ending([topic_filter])
        self.model.subscribe(topic_filter, qos)
        await self.device.subscribe(topic_filter, qos)

    async def ending(self, filters: Iterable[bytes]) -> None:
        """These subscriptions are about to end, or to get QoS 0: each may have others send what is pending again."""
        for topic_filter in {*filters} & {*self.model.filters, *self.model.doubted}:
            found = await pending(self.node, b"d", topic_filter)
            self.model.repeats.update(found)
            self.device.may_repeat.update(found)

    async def before(self, changes: list[tuple[bytes, int | None]]) -> None:
        await self.ending([topic_filter for topic_filter, qos in changes if not qos])

    async def step(self, step: str) -> None:
        if step.startswith("publish"):
            await self.publish(b"$delayed/5/" if step == "publish later" else b"")
        elif step == "time goes on":
            self.clock.now_ms += 10_000
            await engine_of(self.node).release_due()
        elif step == "kill":
            await self.kill()
        elif step == "drop":
            await self.device.drop()
        elif step == "rules":
            await self.change_rules()
        elif self.device.client is None or step == "take over":
            await self.connect()
        elif step.endswith("subscribe") or step == "pipeline":
            await self.change(step)
        else:
            await self.go_on(step)

    async def publish(self, prefix: bytes) -> None:
        chance = self.chance
        topics = [prefix + topic for topic in chance.choices(TOPICS, k=chance.choice([1, 3, 20]))]
        await self.publisher.burst(topics, [chance.choice([1, 2, 2]) for _ in topics])
        self.model.note_sent(self.publisher)

    async def go_on(self, step: str) -> None:
        device, chance = self.device, self.chance
        if step == "poll":
            await device.poll()
        elif step == "ack":
            device.acknowledge(len(device.owed))
        elif step == "ack some":
            device.acknowledge(chance.randint(1, 10), chance)
        elif step == "disconnect":
            await device.disconnect()
        elif step == "busy":
            await self.busy()

    async def change(self, step: str) -> None:
        """Of what is subscribed to; but for the filter that stays."""
        device, chance = self.device, self.chance
        if step == "pipeline":
            changes = self.changes()
            await self.before(changes)
            wanted = self.model.change(changes)
            found = await device.pipeline(changes)
            assert device.version == 4 or found == wanted, changes
            return
        topic_filter = chance.choice(FILTERS if step == "subscribe" else list(self.model.any) or FILTERS)
        if topic_filter not in self.changeable():
            return
        if step == "subscribe":
            await self.subscribe(topic_filter, chance.choice([0, 1, 2, 2]))
        else:
            await self.ending([topic_filter])
            self.model.unsubscribe(topic_filter)
            await device.unsubscribe(topic_filter)

    def changes(self) -> list[tuple[bytes, int | None]]:
        """Few filters, so that they meet each other."""
        chance = self.chance
        some = chance.sample(self.changeable(), chance.choice([1, 2]))
        return [(chance.choice(some), chance.choice([None, None, 0, 1, 2, 2])) for _ in range(chance.randint(2, 6))]

    def changeable(self) -> list[bytes]:
        """Filters that may be subscribed to, but for the one that stays."""
        return [each for each in FILTERS if each != self.kept and not (self.is_denied and matches(each, _DENIED))]

    async def change_rules(self) -> None:
        """A topic may not be read any more, or may again. Who is subscribed to it is disconnected."""
        self.is_denied = not self.is_denied
        await set_rules(self.node, "", *[f"deny subscribe {_DENIED.decode()}"] * self.is_denied)
        if self.device.client is None or not any(matches(each, _DENIED) for each in self.model.any):
            return
        if self.is_denied:
            try:
                while True:
                    await self.device.read()
            except (EOFError, OSError):
                await self.device.drop()

    async def connect(self) -> None:
        """What may not be read any more is gone. And the client does not know what came of changes that had no answer:
        it ends them all."""
        gone = [each for each in self.model.any if self.is_denied and matches(each, _DENIED)]
        await self.ending(gone)
        await self.device.connect()
        if self.is_denied:
            self.device.lose()
            for topic_filter in gone:
                self.model.unsubscribe(topic_filter)
        for topic_filter in sorted(self.model.doubted):
            await self.ending([topic_filter])
            await self.device.unsubscribe(topic_filter)
        self.model.doubted.clear()

    async def busy(self) -> None:
        """The log has no room, for all or some of what comes: the connection may end, and the node may be killed."""
        chance, device, engine = self.chance, self.device, engine_of(self.node)
        append, most = engine.append, chance.choice([0.3, 1.0])

        def refuse(frames: list[bytes], done: Done) -> None:
            if chance.random() < most:
                asyncio.get_running_loop().call_soon(done, Appended(error=StoreBusy("no room")))
            else:
                append(frames, done)

        what = chance.choice(["acknowledge", "change", "change", "disconnect", "take over"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "append", refuse)
            changes = self.changes() if what == "change" else []
            await self.before(changes)
            try:
                if what == "acknowledge":
                    device.acknowledge(chance.randint(1, 10), chance)
                    await device.poll()
                elif what == "change":
                    await device.pipeline(changes)
                else:
                    await device.drop()
            except (EOFError, OSError):
                for topic_filter, _ in changes:
                    self.model.doubt(topic_filter)
                await device.drop()
            else:
                self.model.change(changes)
            if chance.random() < _KILL:
                await self.kill()
        if device.client is not None:
            try:
                await device.poll()
            except (EOFError, OSError):  # the end of the connection was on its way
                await device.drop()

    async def kill(self) -> None:
        if self.kills == _MOST_KILLS:
            return
        self.kills += 1
        if self.device.client is not None and self.chance.random() < _KILL:
            changes = self.changes()
            await self.before(changes)
            self.device.begin(changes)
            for topic_filter, _ in changes:
                self.model.doubt(topic_filter)
            for _ in range(self.chance.randrange(30)):  # the node gets on with them, a little
                await asyncio.sleep(0)
        name = f"killed-{self.kills}"
        for packet_id, payload in [*self.device.unsettled.items(), *self.device.earlier.items()]:
            if self.device.levels[packet_id] == 1:
                self.again[payload] = len(self.device.seen)
        self.node = await crashed(self.make_node, self.node, name, mqtt__max_in_flight=self.window)
        await self.device.killed()
        if self.publisher.client is not None:
            await self.publisher.client.drop()
            self.publisher.client = None
        self.device.port = self.publisher.port = self.node.ports.mqtt

    def come(self) -> set[bytes]:
        """Messages that have come. One that must come again counts from then on."""
        seen = enumerate(self.device.seen)
        return {payload for number, (_, payload, _) in seen if number >= self.again.get(payload, 0)}

    async def end(self) -> None:
        """All that is due comes, and what was begun comes to its end."""
        device = self.device
        self.clock.now_ms += 10_000
        await engine_of(self.node).release_due()
        if device.client is None:
            await self.connect()
        due = self.model.due()
        device.acknowledge(len(device.owed))
        while not due <= self.come() or device.unsettled or device.earlier:
            await device.read()
            device.acknowledge(len(device.owed))
        await device.poll()
        self.model.check(device.seen)
        await device.disconnect()


@pytest.mark.mqtt5(
    "3.8.4-3", "3.8.4-4", "3.10.4-3", "3.3.4-9", "4.3.2-1", "4.3.3-1", "4.3.3-3", "4.3.3-8", "4.4.0-1", "4.5.0-1"
)
@pytest.mark.mqtt311("3.8.4-3", "3.10.4-3", "4.3.2-1", "4.3.3-1", "4.4.0-1", "4.5.0-1")
@pytest.mark.parametrize("seed", range(*SEEDS))
async def test_nothing_is_lost_and_qos_2_comes_once(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    await Scenario(make_node, HeldClock(monkeypatch), seed).run()
