"""What a node of a cluster says about itself: to `/health`, metrics, `sluice cluster`, and gateways that look for the
leader."""

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.json_format import ParseDict

from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.node.leader_check import LeaderCheck
from gateway.rpc.status import RequestError
from store.cluster.clustered_store import ClusteredStore, LogState
from store.cluster.member import NodeNameTaken, NodeRole, NotLeading
from store.cluster.shared_log import SharedLogUnavailable
from store.cluster.slot import LeaderClaim
from store.errors import StoreClosed, StoreError
from store.remote.client.status import ask_status, ask_to_drain
from store.remote.transport.connection import Tls

_LOOK_S: Final = 0.5  # between two looks whether a new slot came
_ASKED_S: Final = 5.0  # for the shared log's answer
_HANDED_S: Final = 45.0  # for another node to lead, and for this one to have read so far; less than a command waits


_RATE: Final = 100  # devices a second, unless the order has another rate


class DrainOrder(msgspec.Struct, frozen=True):
    """How a node is drained."""

    rate: int  # devices a second that each of its gateways sends away
    services_s: int  # that cloud services have to go by themselves


class ClusterMember:
    """One node of a cluster. Implements `gateway.http.cluster_state.ClusterState`, and the service `Cluster` of the
    management surface."""

    def __init__(
        self,
        store: ClusteredStore,
        name: str,
        address: str,
        nodes: Callable[[], list[str]],
        tls: Tls | None,
        drain: Callable[[DrainOrder | None], None],
        site: str,
    ) -> None:
        """address: of this node's store, as other nodes reach it. nodes: those that this node knows of others.
        tls: to ask other nodes. drain: has the clients of this node sent to other nodes, or served again."""
        self._address = address
        self._nodes = nodes
        self._tls = tls
        self._store = store
        self._name = name
        self._process = secrets.token_hex(8)  # random name of this one
        self._loop = asyncio.get_running_loop()
        self._slot = 0
        self._slot_at = self._loop.time()
        self.damage = ""  # why this node stopped
        self.is_drained = False
        self.is_alone = False  # it is drained, and serves clients while no other node does
        self._drain_node = drain
        self._site = site
        self._check = LeaderCheck(store, self._ask, address)
        self.confirm = self._check.confirm

    async def run(self) -> None:
        """Note when slots come and which nodes there are, and check whether this node still leads, until cancelled."""
        checking = asyncio.ensure_future(self._check.run())
        try:
            while True:
                if self._store.history.slot != self._slot:
                    self._slot, self._slot_at = self._store.history.slot, self._loop.time()
                claim = self._store.history.leader
                self._check.note([*self._nodes(), *([] if claim is None else [claim.address])])
                await asyncio.sleep(_LOOK_S)
        finally:
            checking.cancel()
            await asyncio.wait((checking,))

    def leader(self) -> tuple[str, str]:
        """The address of the store that leads, "" if it is not known, and why this node does not serve."""
        claim = self._store.leader
        if claim is None:
            return "", self.trouble() or "it begins to lead"
        if self.standby():
            return "", self.standby()
        if claim.node == self._name:
            return "", "it begins to lead"
        return claim.address, f"node {claim.node} leads"

    def standby(self) -> str:
        """Why the gateways of this node serve no devices; "": they do."""
        claim = self._store.leader
        if claim is None or claim.site == self._site:
            return ""
        return f"{_name_of(claim.site)} has the log, and {_name_of(self._site)} stands by"

    async def successor(self) -> str:
        """The node that takes over soonest if this one leads no more: of those that answer and miss nothing, the one
        that has read the most. "": there is none."""
        others = [other for other in await self._ask_others() if "node" in other and not other["trouble"]]
        others = [other for other in others if other["node"] != self._name]
        return str(max(others, key=lambda other: other["slot"])["node"]) if others else ""

    async def is_needed(self) -> bool:
        """Whether no node that is not drained serves clients, as far as this one can see."""
        if self._store.leader is None or self._store.unavailable is not None or self.damage or self.standby():
            return False  # nor could this node serve any
        others = await self._ask_others()
        return not any("node" in other and not other["drained"] and not other["trouble"] for other in others)

    async def check_name(self, claim: LeaderClaim) -> None:
        """Raise `NodeNameTaken` if another process under this node's name answers: the one that claimed, or one whose
        gateways are attached to that."""
        found = [await self._ask(claim.address)]
        others = set(found[0].get("nodes", ())) - {claim.address, self._address}
        found += await asyncio.gather(*map(self._ask, sorted(others)))
        for about in found:
            if about.get("node") == self._name and about["process"] != self._process:
                where = about["address"]
                raise NodeNameTaken(f"a node {self._name} runs at {where} already: give each node a name of its own")

    # --- gateway.http.cluster_state.ClusterState

    def facts(self) -> dict[str, object]:
        history, leader = self._store.history, self._store.leader
        facts: dict[str, object] = {
            "node": self._name,
            "role": self._store.role.value,
            "leader": leader.node if leader is not None else None,
            "epoch": history.epoch,
            "slot": history.slot,
            "position": history.end,
            "drained": self.is_drained,
            "site": self._site,
            "standby": self.standby(),
        }
        unreached = self._store.unavailable
        if unreached is not None:
            since, why = unreached
            facts |= {"unreached_s": round(self._loop.time() - since, 1), "unreached": str(why)}
        return facts

    def trouble(self) -> str:
        if self.damage:
            return self.damage
        if self._store.unavailable is not None:
            return "the shared log does not answer"
        if self.standby():
            return self.standby()
        if self.is_drained and not self.is_alone:
            return "the node is drained"
        if self._store.leader is None:
            return "no node leads"
        return ""

    def status(self) -> bytes:
        """What this node says to others."""
        about = {**self._about(), "nodes": self._nodes()}
        return json.dumps(about).encode()

    def figures(self) -> dict[str, float]:
        history, unreached, now = self._store.history, self._store.unavailable, self._loop.time()
        return {
            "leads": int(self._store.role is NodeRole.LEADER),
            "epoch": history.epoch,
            "slot": history.slot,
            "position": history.end,
            "silence_seconds": now - self._slot_at if history.slot == self._slot else 0,
            "unreached_seconds": now - unreached[0] if unreached is not None else 0,
        }

    # --- sluice cluster

    async def get_cluster(self, request: pb.GetClusterRequest, _manager: Manager) -> pb.ClusterStatus:
        reply = pb.ClusterStatus(node=_node_of(self._about()))
        with suppress(SharedLogUnavailable, TimeoutError):
            async with asyncio.timeout(_ASKED_S):
                reply.shared_log.CopyFrom(_facts_of(await self._store.log_state()))
        reply.others.extend(map(_node_of, await self._ask_others()))
        if request.digest or request.HasField("position"):
            at, digest = await self._store.digest(request.position if request.HasField("position") else None)
            reply.digest, reply.digest_at = digest.hex(), at
        return reply

    def _about(self) -> dict[str, Any]:
        claim, engine, founded = self._store.leader, self._store.engine, self._store.history.founded
        about: dict[str, Any] = {
            **self.facts(),
            "process": self._process,
            "log_id": founded.log_id if founded is not None else "",
            "address": self._address,
            "leader_address": claim.address if claim is not None else None,
            "silence_s": round(self.figures()["silence_seconds"], 1),
            "trouble": self.trouble(),
        }
        local = self._store.local
        tier = None if local is None else local.stats().tier
        if tier is not None:
            about["tier"] = {
                "segments": tier.segments,
                "object_bytes": tier.object_bytes,
                "local_begin": tier.local_begin,
                "waiting_bytes": tier.waiting_bytes,
                "error": tier.error,
            }
        if engine is not None:
            names = [name.partition(b"/")[0].decode() for name in engine.gateway_registry.figures]
            about["gateways"] = sorted(names)
            about["clients"] = _clients_of(engine.gateway_registry.figures)
        return about

    async def _ask_others(self) -> list[dict[str, Any]]:
        """What other nodes say: those whose gateways the leader knows, and the leader."""
        claim, nodes, found = self._store.leader, set(self._nodes()), dict[str, dict[str, Any]]()
        if claim is not None and claim.address != self._address:
            found[claim.address] = await self._ask(claim.address)
            nodes |= set(found[claim.address].get("nodes", ()))
        asked = sorted(nodes - {self._address, *found})
        found |= zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True)
        return [found[address] for address in sorted(found)]

    async def _ask(self, address: str) -> dict[str, Any]:
        try:
            about: dict[str, Any] = json.loads(await ask_status(address, self._tls))
        except (StoreClosed, ValueError) as error:
            return {"address": address, "trouble": str(error)}
        return about

    async def drain_node(self, request: pb.DrainNodeRequest, _manager: Manager) -> pb.DrainNodeReply:
        """Returns when the node has given up leading and begins to send its clients to other nodes."""
        order = {"rate": request.rate or _RATE, "services_s": request.services_s}
        await self._order(request.node, order)
        return pb.DrainNodeReply()

    async def undrain_node(self, request: pb.UndrainNodeRequest, _manager: Manager) -> pb.UndrainNodeReply:
        """Returns when the node serves clients again."""
        await self._order(request.node, {})
        return pb.UndrainNodeReply()

    async def _order(self, node: str, order: dict[str, int]) -> None:
        """Have a node carry out an order. Raises `RequestError` and `StoreError`."""
        body = json.dumps(order).encode()
        if node == self._name:
            await self.carry_out(body)
            return
        for other in await self._ask_others():
            if other.get("node") == node:
                await ask_to_drain(str(other["address"]), self._tls, body)
                return
        raise _wrong(f"no node {node} answers")

    async def carry_out(self, order: bytes) -> None:
        """Drain this node; without a rate in the order, drain it no more. Raises `StoreError`."""
        body = json.loads(order)
        if body.get("rate") is None:
            self.is_drained = False
            self._drain_node(None)
            return
        wanted = DrainOrder(max(1, int(body["rate"])), max(0, int(body["services_s"])))
        if not self.is_drained and not await self.successor():
            raise StoreError("no other node could serve the clients: none answers, or all are in trouble")
        self.is_drained = True  # so this node is nobody's successor
        if self._store.role is NodeRole.LEADER and (node := await self.successor()):
            with suppress(NotLeading):
                await self._store.hand_over(node)
        self._drain_node(wanted)

    async def promote_site(self, _request: pb.PromoteSiteRequest, _manager: Manager) -> pb.PromoteSiteReply:
        """Returns when this node, or another one of its site, leads."""
        if self.damage:
            raise StoreError(self.damage)
        if self._store.leader is None and self._store.history.leader is None:
            raise _wrong("no node ever led this log: start the nodes of one site")
        self._store.promote()
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANDED_S):
                while (leader := self._store.leader) is None or leader.site != self._site:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if leader is None or leader.site != self._site:
            order = "; the order stands" if self._store.is_promoting else ""
            raise StoreError(f"{_name_of(self._site)} has not got the log: {self.trouble()}{order}")
        return pb.PromoteSiteReply(leader=leader.node)

    async def change_leader(self, request: pb.ChangeLeaderRequest, _manager: Manager) -> pb.ChangeLeaderReply:
        """Returns when the node leads."""
        node = request.node
        leader = self._store.leader
        if leader is None or self._store.role is not NodeRole.LEADER:
            who = "no node leads" if leader is None else f"node {leader.node} leads: give this command there"
            raise _wrong(f"this node does not lead; {who}")
        if node == self._name:
            return pb.ChangeLeaderReply(leader=node)
        others = {str(other["node"]): other["trouble"] for other in await self._ask_others() if "node" in other}
        if wrong := others.get(node, f"the nodes that answer are {', '.join(sorted(others)) or 'none'}"):
            raise _wrong(f"node {node} cannot lead: {wrong}")
        await self._store.hand_over(node)
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANDED_S):
                while (leader := self._store.leader) is None or self._store.role is NodeRole.LEADER:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if leader is None or leader.node != node:
            raise _wrong(
                f"node {node} did not take over, is it there? {leader.node} leads"
                if leader is not None
                else f"node {node} did not take over, and no node leads yet"
            )
        return pb.ChangeLeaderReply(leader=node)


def _name_of(site: str) -> str:
    return f"site {site}" if site else "the site without a name"


def _clients_of(figures: Mapping[bytes, Mapping[str, int]]) -> dict[str, dict[str, int] | None]:
    """The connected devices, and the calls of cloud services under way, of the nodes whose gateways are attached. None:
    a gateway has not told yet."""
    clients: dict[str, dict[str, int] | None] = {}
    for name, each in figures.items():
        node = name.partition(b"/")[0].rpartition(b".")[0].decode()  # see `gateway.node.supervisor`
        before = clients.get(node, {"devices": 0, "service_calls": 0})
        if before is None or "connected" not in each:
            clients[node] = None
        else:
            calls = before["service_calls"] + each.get("service_calls", 0)
            clients[node] = {"devices": before["devices"] + each["connected"], "service_calls": calls}
    return clients


def _wrong(text: str) -> RequestError:
    return RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)


def _node_of(about: dict[str, Any]) -> pb.ClusterNode:
    """What a node says about itself (`ClusterMember._about`), perhaps one of another version."""
    known = pb.ClusterNode.DESCRIPTOR.fields_by_name
    fields = {name: value for name, value in about.items() if name in known}
    clients = dict(about.get("clients") or {})
    fields["clients"] = [
        {"node": node, "is_known": counts is not None, **(counts or {})} for node, counts in sorted(clients.items())
    ]
    return ParseDict(fields, pb.ClusterNode())


def _facts_of(log: LogState) -> pb.SharedLog:
    facts = pb.SharedLog(begin=log.begin)
    if log.snapshot is not None:
        manifest = log.snapshot.manifest
        facts.snapshot.CopyFrom(
            pb.LogSnapshot(
                number=log.snapshot.number,
                slot=manifest.slot,
                position=manifest.position,
                node=manifest.node,
                time_ms=manifest.time_ms,
                bytes=manifest.size,
            )
        )
    return facts
