"""What event rules cost: the CPU time of a store and its rules for each message.

The messages are stored first. Then a rule that was paused handles all of them, in the same process, with nothing else
to do.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import record
from gateway.config.config import Config
from gateway.config.events import EventsConfig
from gateway.node.node import Node
from record.layout import Kind
from store import control
from store.api import Appended, event_rule_group
from store.engine import Engine

_BATCH: Final = 1000  # messages of an append
_TRUCKS: Final = 100
_TOPIC: Final = {"topic": "out/x"}
PAYLOAD: Final = json.dumps({"t": 31.5, "hum": 40, "site": "x" * 150}).encode()
WORKS: Final[Mapping[str, dict[str, Any]]] = {
    "the event as it is": {"topics": ["fleet/+/temp"], "topic": _TOPIC},
    "SQL, nothing matches": {"sql": 'SELECT * FROM "fleet/+/temp" WHERE payload.t > 90', "topic": _TOPIC},
    "SQL, filter and two results": {
        "sql": 'SELECT payload.t AS t, topic_level(2) AS truck FROM "fleet/+/temp" WHERE t > 30',
        "topic": _TOPIC,
    },
    "pattern and JSONPath": {
        "topics": ["fleet/+/temp"],
        "pattern": '{"data": {"t": [{"numeric": [">", 30]}]}}',
        "transform": {"path": "$.t"},
        "topic": _TOPIC,
    },
    "template": {
        "topics": ["fleet/+/temp"],
        "transform": {"template": '{"t": {{ data.t }}, "truck": {{ levels["2"]|tojson }}}'},
        "topic": _TOPIC,
    },
    "SQL and a lookup table": {
        "sql": 'SELECT payload.t AS t, enriched.truck.name AS truck FROM "fleet/+/temp" WHERE t > 30',
        "enrich": {"truck": '$kv/trucks/{{ levels["2"] }}'},
        "topic": _TOPIC,
    },
}


class Measurement:
    """A node in a folder of its own."""

    def __init__(self, node: Node, engine: Engine, messages: int) -> None:
        self._node = node
        self._engine = engine
        self._frames = [
            record.frame(int(Kind.MESSAGE), 1, 0, b"fleet/%d/temp" % (number % _TRUCKS), b"device", b"", PAYLOAD)
            for number in range(messages)
        ]

    async def append(self, frames: list[bytes]) -> None:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._engine.append(frames, done.set_result)
        error = (await done).error
        if error is not None:
            raise error

    async def set_rule(self, name: bytes, definition: dict[str, Any], *filters: bytes) -> None:
        rule = control.EventRuleSet(filters, definition=json.dumps(definition).encode())
        await self.append([rule.frame(name)])

    async def put_trucks(self) -> None:
        """Fill the lookup table."""
        rows = [(b"trucks/%d" % number, control.EntryPut(b'{"name": "t%d"}' % number)) for number in range(_TRUCKS)]
        await self.append([row.frame(subject) for subject, row in rows])

    async def publish(self) -> float:
        """Store all messages. Returns the CPU time of each, in µs."""
        began = time.process_time()
        for at in range(0, len(self._frames), _BATCH):
            await self.append(self._frames[at : at + _BATCH])
        return self._each(time.process_time() - began)

    async def handle(self, name: bytes) -> tuple[float, float]:
        """Let a paused rule handle all messages. Returns the CPU time of each in µs, and how many it did a second."""
        began, since = time.process_time(), time.perf_counter()
        await self.append([control.GroupResumed().frame(event_rule_group(name))])
        while True:
            progress = await self._engine.group_progress(event_rule_group(name))
            if progress is not None and not progress.lag:
                break
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - since
        return self._each(time.process_time() - began), len(self._frames) / seconds

    def _each(self, seconds: float) -> float:
        return seconds / len(self._frames) * 1e6


async def measure(messages: int, rules: int) -> None:
    for name, definition in WORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            node, made = await started_node(Path(folder), messages)
            await made.put_trucks()
            await made.set_rule(b"r", definition, b"fleet/+/temp")
            await made.append([control.GroupPaused().frame(event_rule_group(b"r"))])
            await made.publish()
            cpu, rate = await made.handle(b"r")
            await node.stop()
        print(f"{name}: {cpu:.1f} µs of CPU a message, {rate:,.0f} messages a second", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        node, made = await started_node(Path(folder), messages)
        alone = min([await made.publish() for _ in range(3)])
        for number in range(rules):
            await made.set_rule(b"r%d" % number, WORKS["the event as it is"], b"other/%d/+" % (number % 100))
        beside = min([await made.publish() for _ in range(3)])
        await node.stop()
    print(f"a message: {alone:.2f} µs of CPU, and {beside:.2f} µs beside {rules} rules of other topics", flush=True)


async def started_node(folder: Path, messages: int, **settings: Any) -> tuple[Node, Measurement]:
    """A node in this process. settings: of the table `[events]`."""
    config = Config(data_dir=folder / "data", events=EventsConfig(**settings))
    config.mqtt.port = config.mqtt.ws_port = config.grpc.port = config.http.port = 0
    node = Node(config)
    await node.start()
    engine = node._engine
    assert engine is not None
    return node, Measurement(node, engine, messages)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_rules", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, metavar="N")
    parser.add_argument("--rules", type=int, default=1000, metavar="N", help="rules of other topics")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.messages, arguments.rules))


if __name__ == "__main__":
    main()
