"""`sluice cluster`: the state of a clustered node, the change of its leader, and the ways from a single node
and back."""

import asyncio
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from sluice.console.command import (
    Arguments,
    CommandError,
    Subparsers,
    add_actions,
    add_data_dir,
    add_json,
    declare,
    offset,
    print_result,
    within,
)
from sluice.console.facts import facts
from sluice.console.times import format_size, format_time
from sluice.node import management

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.management.proto import management_pb2 as pb
    from store.cluster.founding import Begun

EXAMPLE = "sluice cluster status --data-dir /var/lib/sluice"


def add(subparsers: Subparsers) -> None:
    about = "show the state of a clustered node, let another node lead, found and leave a cluster"
    actions = add_actions(declare(subparsers, "cluster", about, EXAMPLE))
    status = declare(actions, "status", "show who leads, and how far each node has the log", EXAMPLE, _status)
    text = "add a digest of this node's views, which is equal on all nodes at equal positions (slow)"
    status.add_argument("--digest", action="store_true", help=text)
    text = "the log position of the digest (default: the end that this node knows)"
    status.add_argument("--position", type=offset, metavar="POSITION", help=text)
    management.add_arguments(status)
    example = "sluice cluster lead n2 --data-dir /var/lib/sluice"
    lead = declare(actions, "lead", "let another node lead; give this command at the one that leads", example, _lead)
    lead.add_argument("node", metavar="NODE", help="the name of the node that is to lead")
    management.add_arguments(lead)
    text = "send the clients of a node to other nodes, so that it can be stopped"
    example = "sluice cluster drain n1 --data-dir /var/lib/sluice"
    drain = declare(actions, "drain", text, example, _drain)
    drain.add_argument("node", metavar="NODE", help="the name of the node")
    text = "devices a second that each gateway of the node sends away (default: 100)"
    drain.add_argument("--rate", type=within(1, 1_000_000), default=100, metavar="N", help=text)
    text = "seconds that cloud services have to go by themselves, before they are sent away (default: 45)"
    drain.add_argument("--services-after", type=within(0, 3600), default=45, metavar="SECONDS", help=text)
    text = "seconds to wait until all have left; 0: do not wait (default: 600)"
    drain.add_argument("--wait", type=within(0, 86_400), default=600, metavar="SECONDS", help=text)
    management.add_arguments(drain)
    text = "let a node that was drained serve clients again"
    undrain = declare(actions, "undrain", text, "sluice cluster undrain n1 --data-dir /var/lib/sluice", _undrain)
    undrain.add_argument("node", metavar="NODE", help="the name of the node")
    management.add_arguments(undrain)
    text = "let the site of a node have the log, in place of the site that has it"
    promote = declare(actions, "promote", text, "sluice cluster promote --data-dir /var/lib/sluice", _promote)
    management.add_arguments(promote)
    text = "make a stopped node's copy of the log the folder of a single node, which goes on by itself"
    leave = declare(actions, "leave", text, "sluice cluster leave --data-dir /var/lib/sluice", _leave)
    add_data_dir(leave)
    add_json(leave)
    text = "begin a shared log with the log of a stopped single node, whose folder stays as it is"
    example = "sluice cluster found --data-dir /var/lib/sluice.single --config /etc/sluice/sluice.toml"
    found = declare(actions, "found", text, example, _found)
    text = "the configuration of the cluster's first node; [cluster] says where the shared log is"
    found.add_argument("--config", type=Path, metavar="FILE", required=True, help=text)
    add_data_dir(found)
    add_json(found)


def _status(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.GetClusterRequest(digest=arguments.digest, position=arguments.position)
    with management.connect(arguments) as link:
        status = status_of(link.call("GetCluster", request, pb.ClusterStatus))
    lines = lines_of(status) + [line for other in status["others"] for line in lines_of(other)]
    if status["shared_log"] is not None:
        lines.append(line_of_log(status["shared_log"]))
    print_result(arguments, status, "\n".join(lines))
    return 1 if status["trouble"] and not status["drained"] and not status["standby"] else 0


def status_of(reply: "pb.ClusterStatus") -> dict[str, Any]:
    """What the node says about itself, and beside that what it says about others."""
    status = facts(reply)
    return {**status.pop("node"), **status}


def lines_of(status: dict[str, Any]) -> list[str]:
    """What one node says; of a node that did not answer, that."""
    if not status["node"]:
        return [status["trouble"]]
    if status["leader"] == status["node"]:
        who = "leads"
    elif status["leader"]:
        who = f"follows {status['leader']} at {status['leader_address']}"
    else:
        who = "follows, and no node leads"
    where = f"epoch {status['epoch']}, slot {status['slot']} {status['silence_s']} s ago, position {status['position']}"
    lines = [f"node {status['node']} {who}: {where}"]
    if status["standby"]:
        lines.append(f"  {status['standby']}")
    if status["drained"]:
        what = "its clients are sent to other nodes" if status["trouble"] else "it serves while no other node does"
        lines.append(f"  it is drained: {what}")
    if status["role"] == "leader":
        lines.append(f"  gateways: {', '.join(status['gateways']) or 'none'}")
        lines += [f"  clients of {each['node']}: {_counted(each)}" for each in status["clients"]]
    if (tier := status["tier"]) is not None:
        waiting = f", {tier['waiting_bytes']} bytes wait for it" if tier["waiting_bytes"] else ""
        lines.append(
            f"  {tier['segments']} segments are in the tier, and files begin at {tier['local_begin']}{waiting}"
        )
        if tier["error"]:
            lines.append(f"  the tier does not answer: {tier['error']}")
    if status.get("digest"):
        lines.append(f"  digest of the views at position {status['digest_at']}: {status['digest']}")
    if status["unreached"]:
        lines.append(f"  the shared log does not answer since {status['unreached_s']} s: {status['unreached']}")
    elif status["trouble"] and not status["drained"] and not status["standby"]:
        lines.append(f"  {status['trouble']}")
    return lines


def line_of_log(log: dict[str, Any]) -> str:
    """What the shared log has."""
    begin, snapshot = log["begin"], log["snapshot"]
    if snapshot is None:
        return f"the shared log begins with slot {begin}, and has no snapshot yet"
    made = datetime.fromtimestamp(snapshot["time_ms"] // 1000, UTC).isoformat().replace("+00:00", "Z")
    where = f"slot {snapshot['slot']}, position {snapshot['position']}, {snapshot['bytes'] >> 20} MB"
    return (
        f"the shared log begins with slot {begin}; its newest snapshot is number {snapshot['number']} "
        f"of node {snapshot['node']} at {made}: {where}"
    )


def _lead(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    request = pb.ChangeLeaderRequest(node=arguments.node)
    leader = management.ask(arguments, "ChangeLeader", request, pb.ChangeLeaderReply).leader
    print_result(arguments, {"leader": leader}, f"node {leader} leads")
    return 0


def _counted(clients: dict[str, Any] | None) -> str:
    if clients is None or not clients["is_known"]:
        return "not known yet"
    return f"{clients['devices']} devices, {clients['service_calls']} calls of cloud services"


def _drain(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    order = pb.DrainNodeRequest(node=arguments.node, rate=arguments.rate, services_s=arguments.services_after)
    management.ask(arguments, "DrainNode", order, pb.DrainNodeReply)
    until = monotonic() + arguments.wait
    told = ""
    while arguments.wait:
        status = status_of(management.ask(arguments, "GetCluster", pb.GetClusterRequest(), pb.ClusterStatus))
        clients = clients_of(status, arguments.node)
        if any(each["node"] == arguments.node and each["standby"] for each in (status, *status["others"])):
            break  # it serves no devices
        if clients is not None and clients["is_known"] and not clients["devices"] + clients["service_calls"]:
            break
        if told != (told := _counted(clients)) and not arguments.json:
            print(f"node {arguments.node}: {told}", file=sys.stderr)
        if monotonic() > until:
            raise CommandError(f"node {arguments.node} is drained; its clients: {told}")
        sleep(0.5)
    text = f"node {arguments.node} is drained" + (", and can be stopped" if arguments.wait else "")
    print_result(arguments, {"node": arguments.node, "drained": True}, text)
    return 0


def clients_of(status: dict[str, Any], node: str) -> dict[str, Any] | None:
    """The clients of a node, as the leader knows them; None: it does not."""
    known = (each for about in (status, *status["others"]) for each in about["clients"])
    return next((each for each in known if each["node"] == node), None)


def _promote(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    reply = management.ask(arguments, "PromoteSite", pb.PromoteSiteRequest(), pb.PromoteSiteReply)
    print_result(arguments, {"leader": reply.leader}, f"node {reply.leader} leads")
    return 0


def _undrain(arguments: Arguments) -> int:
    from gateway.management.proto import management_pb2 as pb  # noqa: PLC0415

    management.ask(arguments, "UndrainNode", pb.UndrainNodeRequest(node=arguments.node), pb.UndrainNodeReply)
    print_result(arguments, {"node": arguments.node, "drained": False}, f"node {arguments.node} serves clients")
    return 0


def _found(arguments: Arguments) -> int:
    from gateway.config.config import ConfigError, load  # noqa: PLC0415

    try:
        config = load(arguments.config, {})
    except ConfigError as error:
        raise CommandError(str(error)) from None
    if not config.cluster.log:
        raise CommandError(f"{arguments.config} has no [cluster]")
    begun = asyncio.run(_begin(arguments.data_dir, config))
    text = f"{config.cluster.log} is founded: the log from {begun.begin} to {begun.position}, {format_size(begun.size)}"
    text += f"\nstart the nodes of the cluster with empty folders; keep {arguments.data_dir}, and start no node on it"
    print_result(arguments, asdict(begun), text)
    return 0


async def _begin(data: Path, config: "Config") -> "Begun":
    from gateway.config.store import store_config  # noqa: PLC0415
    from store.cluster.engines import open_shared_log  # noqa: PLC0415
    from store.cluster.founding import found  # noqa: PLC0415
    from store.log.disk import Disk  # noqa: PLC0415
    from store.log.writer import clock_ms  # noqa: PLC0415

    log = await open_shared_log(config.cluster.log, config.cluster.options)
    try:
        return await found(data, store_config(config), log, config.cluster.name, Disk(), clock_ms)
    finally:
        await log.close()


def _leave(arguments: Arguments) -> int:
    from store.cluster.leaving import leave  # noqa: PLC0415
    from store.log.disk import Disk  # noqa: PLC0415

    found = leave(arguments.data_dir, Disk())
    text = f"{arguments.data_dir} is the folder of a single node: the log from {found.begin} to {found.position}"
    if found.time_ms:
        text += f", as of {format_time(found.time_ms)}"
    if found.dropped_bytes:
        text += f"\nleft out: {format_size(found.dropped_bytes)} behind that position, which were not whole"
    text += "\nremove [cluster] from its configuration before you start it"
    print_result(arguments, asdict(found), text)
    return 0
