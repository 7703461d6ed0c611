"""Consumer groups: how far they are, and how they are moved and deleted."""

import asyncio
import time
from heapq import nlargest
from typing import Final

import grpc

import record
from gateway.broker.append import append
from gateway.broker.service_directory import ServiceDirectory
from gateway.management.areas.services import member_of
from gateway.management.paging import AT_ONCE, after_of, before, latest, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.observe.service_clients import ServiceQuery
from gateway.rpc.access.visibility import group_state
from gateway.rpc.limits import RpcLimits
from gateway.rpc.queue_names import display_name
from gateway.rpc.request_fields import client_group_name, group_name, parent_name
from gateway.rpc.status import RequestError, invalid
from matcher.names import is_shared
from record.layout import PART_PAYLOAD, PART_PROPERTIES
from store import control
from store.api import GroupQueueState, GroupState, dead_letter_queue, partition_queue
from store.engine import Engine

_MAX_QUEUES: Final = 1000  # of one group in a reply
_MAX_LOOKED_AT: Final = 1000  # groups of a list by lag


class GroupsService:
    """Implements the service `Groups`."""

    def __init__(self, store: Engine, limits: RpcLimits, services: ServiceDirectory) -> None:
        self._store = store
        self._limits = limits
        self._services = services

    async def list_groups(self, request: pb.ListGroupsRequest, _manager: Manager) -> pb.ListGroupsReply:
        limit, prefix = page_size(request.limit), request.prefix.encode()
        if request.order != pb.BY_NAME:
            if request.HasField("after"):
                raise invalid("a list that is not sorted by name has one page")
            by_lag = request.order == pb.BY_LAG
            return await (self._furthest_behind(prefix, limit) if by_lag else self._slowest(prefix, limit))
        after = latest(after_of(request), before(prefix))
        reply = pb.ListGroupsReply()
        while len(reply.groups) < limit:
            wanted = min(limit - len(reply.groups), AT_ONCE)
            states = await self._store.groups(after, wanted)
            for state in states:
                if not state.group.startswith(prefix):
                    return reply
                reply.groups.append(await self._summary(state.group, len(_without_dead_letters(state))))
                after = state.group
            if len(states) < wanted:
                return reply
            await asyncio.sleep(0)
        if after is not None:
            reply.after = after.decode()
        return reply

    async def get_group(self, request: pb.GetGroupRequest, _manager: Manager) -> pb.Group:
        return await self._group(await self._state(request.group))

    async def reset_group(self, request: pb.ResetGroupRequest, manager: Manager) -> pb.Group:
        name = group_name(request.group, self._limits)
        if is_shared(name):
            text = "a shared subscription goes on where its members are: only a consumer group can be reset"
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
        state = await group_state(self._store, name)
        if state is not None:
            queues = [each.queue for each in _without_dead_letters(state)]
        elif request.parent:
            parent = parent_name(request.parent)
            queues = [partition_queue(parent, each) for each in range(self._store.partition_count(parent))]
        else:
            raise _no_group(request.group)
        if request.queue:
            queues = [queue for queue in queues if display_name(queue) == request.queue]
            if not queues:
                raise invalid(f"the group {request.group!r} has no queue {request.queue!r}")
        offsets = {queue: await self._target(request, queue) for queue in queues}
        await self._store.reset_group(name, offsets, manager.name.encode())
        return await self._group(await self._state(request.group))

    async def pause_group(self, request: pb.PauseGroupRequest, manager: Manager) -> pb.Group:
        group = (await self._state(request.group)).group
        await append(self._store, [control.GroupPaused(manager.name.encode()).frame(group)])
        return await self._group(await self._state(request.group))

    async def resume_group(self, request: pb.ResumeGroupRequest, _manager: Manager) -> pb.Group:
        group = (await self._state(request.group)).group
        await append(self._store, [control.GroupResumed().frame(group)])
        return await self._group(await self._state(request.group))

    async def delete_group(self, request: pb.DeleteGroupRequest, _manager: Manager) -> pb.DeleteGroupReply:
        client_group_name(request.group, self._limits)
        await self._store.remove_group((await self._state(request.group)).group)
        return pb.DeleteGroupReply()

    async def _target(self, request: pb.ResetGroupRequest, queue: bytes) -> int:
        """The offset to move to in a queue. Raises `RequestError`."""
        match request.WhichOneof("to"):
            case "earliest":
                return (await self._store.bounds(queue)).begin
            case "latest":
                return (await self._store.bounds(queue)).end
            case "time_ms":
                return await self._store.offset_at(queue, max(request.time_ms, 0))
            case "offset":
                if not request.queue:
                    raise invalid("an offset is one of a queue: name the queue")
                return request.offset
        raise invalid("the request does not say where to go on: earliest, latest, a time or an offset")

    async def _furthest_behind(self, prefix: bytes, limit: int) -> pb.ListGroupsReply:
        reply, rows = pb.ListGroupsReply(), []
        names = self._store.group_names(before(prefix), _MAX_LOOKED_AT + 1)
        names = [name for name in names if name.startswith(prefix)]
        reply.is_cut = len(names) > _MAX_LOOKED_AT
        for number, name in enumerate(names[:_MAX_LOOKED_AT], 1):
            rows.append(await self._summary(name))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        reply.groups.extend(nlargest(limit, rows, key=lambda row: row.lag))
        return reply

    async def _slowest(self, prefix: bytes, limit: int) -> pb.ListGroupsReply:
        counts = [(name, count.recent_ms) for name, count in self._store.group_counts.all() if count.handled]
        reply = pb.ListGroupsReply()
        for number, (name, _) in enumerate(sorted(counts, key=lambda each: -each[1]), 1):
            if name.startswith(prefix) and await group_state(self._store, name) is not None:
                reply.groups.append(await self._summary(name))
            if len(reply.groups) == limit:
                break
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return reply

    async def _state(self, name: str) -> GroupState:
        """The group of that name. Raises `RequestError`."""
        state = await group_state(self._store, group_name(name, self._limits))
        if state is None:
            raise _no_group(name)
        return state

    async def _summary(self, group: bytes, queues: int | None = None) -> pb.GroupSummary:
        """queues: how many it consumes, if that is known."""
        if queues is None:
            state = await group_state(self._store, group)
            queues = 0 if state is None else len(_without_dead_letters(state))
        row = pb.GroupSummary(group=group.decode(), queues=queues)
        row.paused = await self._store.group_pause(group) is not None
        progress = await self._store.group_progress(group)
        if progress is not None:
            row.lag, row.unfinished, row.dead_letters = progress.lag, progress.unfinished, progress.dead_letters
            row.lag_seconds = max(time.time() - progress.oldest_ms / 1000, 0.0) if progress.oldest_ms else 0.0
        count, now_ms = self._store.group_counts.find(group), int(time.time() * 1000)
        if count is not None:
            row.handling_ms = count.recent_ms
            row.delivered_rate = count.delivered_rate.per_second(now_ms)
            row.acknowledged_rate = count.acknowledged_rate.per_second(now_ms)
        return row

    async def _group(self, state: GroupState) -> pb.Group:
        queues = _without_dead_letters(state)
        creator = (await self._store.group_creator(state.group)).decode()
        reply = pb.Group(group=state.group.decode(), creator=creator, queue_count=len(queues))
        reply.dead_letters = await self._dead_letters(state)
        pause = await self._store.group_pause(state.group)
        if pause is not None:
            reply.pause.CopyFrom(pb.GroupPause(since_ms=pause.since_ms, by=pause.by.decode()))
        for number, each in enumerate(queues[:_MAX_QUEUES], 1):
            queue = reply.queues.add(queue=display_name(each.queue), floor=each.floor, next=each.next)
            queue.unfinished, queue.lag = each.unfinished, each.lag
            queue.lag_seconds = await self._lag_seconds(each)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._add_work(reply, state.group)
        return reply

    async def _add_work(self, reply: pb.Group, group: bytes) -> None:
        """Add the members of a group, and how fast it is."""
        found = await self._services.find(ServiceQuery(group=reply.group))
        reply.members.extend(member_of(gateway, facts) for gateway, facts in found.services)
        reply.unknown.extend(found.unknown)
        attempts = await self._store.group_attempts(group)
        reply.attempts.extend(pb.AttemptCount(deliveries=each, messages=attempts[each]) for each in sorted(attempts))
        count, now_ms = self._store.group_counts.find(group), int(time.time() * 1000)
        figures = reply.figures
        figures.SetInParent()
        if count is not None:
            figures.deliveries, figures.redeliveries = count.deliveries, count.redeliveries
            figures.acknowledged, figures.dead_lettered = count.acknowledged, count.dead_lettered
            figures.delivered_rate = count.delivered_rate.per_second(now_ms)
            figures.acknowledged_rate = count.acknowledged_rate.per_second(now_ms)
            figures.handling_ms = count.recent_ms
            figures.mean_handling_ms = count.handled_ms / max(count.handled, 1)

    async def _lag_seconds(self, state: GroupQueueState) -> float:
        """The age of the oldest message that is not finished; 0 if there is none."""
        if not state.lag:
            return 0.0
        begin = (await self._store.bounds(state.queue)).begin
        found = await self._store.bulk.fetch(state.queue, max(state.floor, begin), 1, 1, PART_PAYLOAD | PART_PROPERTIES)
        if not found.count:
            return 0.0
        return max(time.time() - record.store_time_of(found.data, 0) / 1000, 0.0)

    async def _dead_letters(self, state: GroupState) -> int:
        """The number of the group's dead letters that are not finished."""
        letters = dead_letter_queue(state.group)
        for each in state.queues:
            if each.queue == letters:
                return each.lag
        bounds = await self._store.bounds(letters)
        return bounds.end - bounds.begin


def _no_group(name: str) -> RequestError:
    return RequestError(grpc.StatusCode.NOT_FOUND, f"there is no group {name!r}")


def _without_dead_letters(state: GroupState) -> list[GroupQueueState]:
    """The places of a group in the queues that it consumes."""
    letters = dead_letter_queue(state.group)
    return [each for each in state.queues if each.queue != letters]
