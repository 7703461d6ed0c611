"""The cluster that the node is part of."""

from gateway.console.texts import link
from gateway.console.visit import Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid


async def cluster(visit: Visit) -> dict[str, object]:
    status = await visit.ask(pb.GetClusterRequest())
    nodes = sorted((status.node, *status.others), key=lambda node: node.node or node.address)
    return {
        "status": status,
        "nodes": nodes,
        "newest": max((node.position for node in nodes), default=0),
        "lacking": await visit.lacking(change=pb.ChangeLeaderRequest()),
    }


async def lead(visit: Visit) -> str:
    visit.back = link("cluster")
    reply = await visit.ask(pb.ChangeLeaderRequest(node=visit.text("node")))
    return f"{reply.leader} leads the cluster."


async def drain(visit: Visit) -> str:
    visit.back = link("cluster")
    node, rate = visit.text("node"), visit.number("rate") or 0
    if not 0 <= rate < 1 << 32:
        raise invalid("a rate is a number of devices a second")
    await visit.ask(pb.DrainNodeRequest(node=node, rate=rate))
    return f"{node} sends its clients to other nodes."


async def undrain(visit: Visit) -> str:
    visit.back = link("cluster")
    node = visit.text("node")
    await visit.ask(pb.UndrainNodeRequest(node=node))
    return f"{node} serves clients again."
