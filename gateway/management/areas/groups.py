"""Consumer groups: how far they are, and how they are moved and deleted."""

import asyncio
import time
from typing import Final

import grpc

import record
from gateway.broker.append import append
from gateway.management.paging import AT_ONCE, after_of, before, latest, page_size
from gateway.management.proto import management_pb2 as pb
from gateway.management.rights import Manager
from gateway.rpc.limits import RpcLimits
from gateway.rpc.queue_names import display_name
from gateway.rpc.request_fields import group_name
from gateway.rpc.status import RequestError, invalid
from gateway.rpc.visibility import group_state
from matcher.names import is_shared
from record.layout import PART_PAYLOAD, PART_PROPERTIES
from store import control
from store.api import GroupQueueState, GroupState, Store, dead_letter_queue

_MAX_QUEUES: Final = 1000  # of one group in a reply


class GroupsService:
    """Implements the service `Groups`."""

    def __init__(self, store: Store, limits: RpcLimits) -> None:
        self._store = store
        self._limits = limits

    async def list_groups(self, request: pb.ListGroupsRequest, _manager: Manager) -> pb.ListGroupsReply:
        limit, prefix = page_size(request.limit), request.prefix.encode()
        after = latest(after_of(request), before(prefix))
        reply = pb.ListGroupsReply()
        while len(reply.groups) < limit:
            wanted = min(limit - len(reply.groups), AT_ONCE)
            states = await self._store.groups(after, wanted)
            for state in states:
                if not state.group.startswith(prefix):
                    return reply
                reply.groups.append(await self._summary(state))
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
        state = await self._state(request.group)
        if is_shared(state.group):
            text = "a shared subscription goes on where its members are: only a consumer group can be reset"
            raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, text)
        queues = [each.queue for each in state.queues if each.queue != dead_letter_queue(state.group)]
        if request.queue:
            queues = [queue for queue in queues if display_name(queue) == request.queue]
            if not queues:
                raise invalid(f"the group {request.group!r} has no queue {request.queue!r}")
        offsets = {queue: await self._target(request, queue) for queue in queues}
        await self._store.reset_group(state.group, offsets, manager.name.encode())
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

    async def _state(self, name: str) -> GroupState:
        """The group of that name. Raises `RequestError`."""
        state = await group_state(self._store, group_name(name, self._limits))
        if state is None:
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"there is no group {name!r}")
        return state

    async def _summary(self, state: GroupState) -> pb.GroupSummary:
        queues = _without_dead_letters(state)
        return pb.GroupSummary(
            group=state.group.decode(),
            queues=len(queues),
            lag=sum(each.lag for each in queues),
            unfinished=sum(each.unfinished for each in queues),
            dead_letters=await self._dead_letters(state),
            paused=await self._store.group_pause(state.group) is not None,
        )

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
        return reply

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


def _without_dead_letters(state: GroupState) -> list[GroupQueueState]:
    """The places of a group in the queues that it consumes."""
    letters = dead_letter_queue(state.group)
    return [each for each in state.queues if each.queue != letters]
