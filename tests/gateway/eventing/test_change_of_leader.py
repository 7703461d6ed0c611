"""Event rules of a cluster: they run where the log is led, and go on there."""

from pathlib import Path

from gateway.management.areas.events import EventsService
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import NODE_USER
from gateway.node.clustered_node import ClusteredStoreNode
from store.engine import Engine
from tests.gateway.eventing.rules import arrived, definition, eventually, payloads, publish
from tests.gateway.eventing.test_lookup_tables import put
from tests.gateway.test_clustered_node import attached, leads, node, running
from tests.waiting import until


def engine_of(leader: ClusteredStoreNode) -> Engine:
    assert leader._served is not None
    return leader._served.engine


async def test_another_leader_goes_on_with_the_rules(tmp_path: Path) -> None:
    one, other = node(tmp_path, "n1"), node(tmp_path, "n2")
    async with running(one):
        await until(lambda: leads(one))
        surface = one._areas["Events"]
        assert isinstance(surface, EventsService)
        await put(engine_of(one), "table/site", "north")
        template = {"template": "{{ data }} {{ enriched.site }}"}
        about = definition(
            topics=["a/+"], enrich={"site": "$kv/table/site"}, transform=template, topic={"topic": "out"}
        )
        await surface.set_event_rule(pb.SetEventRuleRequest(name="r", definition=about), NODE_USER)
        await publish(engine_of(one), "a/1", "1")
        assert await arrived(engine_of(one), "out", 1) == ["1 north"]
        await surface.pause_event_rule(pb.PauseEventRuleRequest(name="r"), NODE_USER)
        await publish(engine_of(one), "a/1", "2", "3")
        await surface.resume_event_rule(pb.ResumeEventRuleRequest(name="r"), NODE_USER)
        async with running(other), attached(one, "n2.g1/1", other.config.cluster.listen):
            await until(lambda: other._member.facts()["leader"] == "n1")
            await one.stop()
            await until(lambda: leads(other))
            await put(engine_of(other), "table/site", "south")
            await publish(engine_of(other), "a/1", "4")

            async def has_all() -> bool:  # some may be there twice
                found = set(await payloads(engine_of(other), "out"))
                return "4 south" in found and {each[0] for each in found} == {"1", "2", "3", "4"}

            await eventually(has_all)
