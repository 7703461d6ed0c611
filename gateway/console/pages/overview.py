"""The first page: is it well, what is in and out, who is behind, what needs a person."""

import asyncio
from collections.abc import Sequence
from typing import Final

from gateway.console import alarms
from gateway.console.live import Sampler
from gateway.console.visit import Row, Visit
from gateway.management.proto import management_pb2 as pb

_PERIOD_S: Final = 600.0  # of which wrong passwords and losses are counted
_RANKED: Final = 10
_CLUSTER_S: Final = 2.0  # for other nodes to answer: they may be what is wrong
_GROUPS: Final = 1000  # that are looked at
_CLIENTS: Final = 100
_REQUESTS: Final = 100  # for access
_COUNTED: Final = ("logins_failed", "messages_refused", "messages_dropped", "protocol_errors", "limits_reached")


async def overview(visit: Visit, sampler: Sampler) -> dict[str, object]:
    found: list[alarms.Alarm] = []
    unseen: list[str] = []  # why a part is not there
    store, why = await visit.try_ask(pb.GetStoreRequest())
    if store is None:
        unseen.append(why)
    else:
        found += alarms.of_store(store)
        figures, why = await visit.try_ask(pb.GetFiguresRequest())
        if figures is not None:
            recent = {field: sampler.growth(field, _PERIOD_S) for field in _COUNTED}
            found += alarms.of_figures(figures, recent, _PERIOD_S)
    cluster = await _cluster(visit, found, unseen)
    groups, groups_why = await visit.try_ask(pb.ListGroupsRequest(limit=_GROUPS))
    if groups is not None:
        found += alarms.of_groups(list(groups.groups))
    asked, _ = await visit.try_ask(pb.ListAccessRequestsRequest(limit=_REQUESTS))
    if asked is not None:
        found += alarms.of_access_requests(list(asked.requests), asked.HasField("after"))
    clients, clients_why = await visit.try_ask(pb.ListClientsRequest(limit=_CLIENTS))
    return {
        "alarms": sorted(found, key=lambda alarm: not alarm.is_severe),
        "unseen": unseen,
        "store": store,
        "cluster": cluster,
        "latest": sampler.latest if store is not None else {},
        "groups": _behind(groups.groups, "lag") if groups is not None else [],
        "groups_why": groups_why,
        "groups_cut": _GROUPS if groups is not None and groups.HasField("after") else 0,
        "clients": _behind(clients.clients, "backlog") if clients is not None else [],
        "clients_why": clients_why,
        "clients_cut": _CLIENTS if clients is not None and clients.HasField("after") else 0,
    }


async def _cluster(visit: Visit, found: list[alarms.Alarm], unseen: list[str]) -> pb.ClusterStatus | None:
    """The state of the cluster; None: there is none, or the person may not see it."""
    lacking = await visit.lacking(cluster=pb.GetClusterRequest())
    if lacking["cluster"]:
        unseen.append(lacking["cluster"])
        return None
    try:
        async with asyncio.timeout(_CLUSTER_S):
            status, _ = await visit.try_ask(pb.GetClusterRequest())
    except TimeoutError:
        text = f"The nodes of the cluster, or its shared log, did not answer within {_CLUSTER_S:g} s."
        found.append(alarms.Alarm(True, text, "cluster"))
        return None
    if not isinstance(status, pb.ClusterStatus):
        return None
    found += alarms.of_cluster(status)
    return status


def _behind(rows: Sequence[Row], field: str) -> list[Row]:
    """The rows with the most in a field, which is not 0."""
    behind = [row for row in rows if getattr(row, field)]
    return sorted(behind, key=lambda row: -getattr(row, field))[:_RANKED]
