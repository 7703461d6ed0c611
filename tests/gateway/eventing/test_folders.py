"""Rules on a data folder of an earlier version, and rules whose start retention has passed."""

import shutil
from pathlib import Path

from gateway.node.node import Node
from tests.gateway.conftest import MakeNode
from tests.gateway.eventing.rules import arrived, engine_of, eventually, payloads, publish, rule, set_rule, settled

VECTORS = Path(__file__).parents[2] / "store" / "vectors"


async def test_a_rule_reads_the_past_of_a_folder_from_before_event_rules(make_node: MakeNode, tmp_path: Path) -> None:
    shutil.copytree(VECTORS / "v1", tmp_path / "data")
    node = await make_node()
    before = await payloads(node, "home/bath/temp")
    assert before
    topic = {"topic": "out/{{ levels['2'] }}"}
    await set_rule(node, "all", topics=["home/+/temp"], topic=topic, start="earliest")
    assert await arrived(node, "out/bath", 1) == before
    await settled(node, "all")
    assert len(await payloads(node, "out/bath")) == len(before)
    await publish(node, "home/bath/temp", "new")
    assert await arrived(node, "out/bath", len(before) + 1) == [*before, "new"]


async def fill(node: Node, topic: str, count: int) -> None:
    for number in range(count):
        await publish(node, topic, f"{number} ".ljust(90_000, "x"))


async def test_a_rule_begins_behind_what_retention_has_removed(make_node: MakeNode) -> None:
    node = await make_node(store__segment_size=2 << 20, store__retention_bytes=4 << 20)
    engine = engine_of(node)
    await fill(node, "in/a", 90)

    async def has_removed() -> bool:
        return engine.stats().log_begin > 0

    await eventually(has_removed)
    kept = await payloads(node, "in/a")
    assert 0 < len(kept) < 90
    for name, topics in (("exact", ["in/a"]), ("wild", ["in/+"])):
        transform = {"constant": "x"}
        await set_rule(node, name, topics=topics, transform=transform, topic={"topic": f"out/{name}"}, start="earliest")
        await set_rule(node, f"{name}-time", topics=topics, transform=transform, topic={"topic": f"t/{name}"}, start=1)
    await settled(node, "exact", "wild", "exact-time", "wild-time")
    for topic in ("out/exact", "out/wild", "t/exact", "t/wild"):
        found = await payloads(node, topic)
        assert 0 < len(found) <= len(kept)
        assert len(found) >= len(kept) - 24, "a segment may have been removed meanwhile"


async def test_a_paused_rule_goes_on_behind_what_retention_has_removed(make_node: MakeNode) -> None:
    node = await make_node(store__segment_size=2 << 20, store__retention_bytes=4 << 20)
    engine = engine_of(node)
    transform = {"constant": "x"}
    await set_rule(node, "late", topics=["in/+"], transform=transform, topic={"topic": "out"}, enabled=False)
    await fill(node, "in/a", 90)

    async def has_removed() -> bool:
        return engine.stats().log_begin > 0

    await eventually(has_removed)
    await set_rule(node, "late", topics=["in/+"], transform=transform, topic={"topic": "out"}, enabled=True)
    await settled(node, "late")
    found = await rule(node, "late")
    assert 0 < found.figures.delivered < 90
    assert (found.dead_letters, found.trouble) == (0, "")
