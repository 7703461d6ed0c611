"""Readers that say themselves where they are: partitions by offset, each reader on its own.

What one reader gets no other loses: several of them on the same parent topic are a broadcast.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Unpack

from cloud_sdk.consumer_options import SelectionOptions, Start
from cloud_sdk.errors import ClientClosed, InvalidArgument, SluiceError
from cloud_sdk.message import Batch, Message
from cloud_sdk.open_resources import OpenResources
from cloud_sdk.partitions import Partitions

_WAIT_S: Final = 20.0  # how long one Pull waits at the end


class PullConsumer:
    """An async context manager and an endless async iterator of `Message`. For one task at a time.

    It reads all partitions of `parent`, or those of `partitions`, from `start`, or, with a `group`, from where that
    committed last. One batch of each partition is read ahead.
    """

    def __init__(
        self,
        reader: Partitions,
        resources: OpenResources,
        parent: str,
        *,
        partitions: Sequence[int] | None = None,
        group: str | None = None,
        start: Start = "earliest",
        max_records: int = 512,
        **selection: Unpack[SelectionOptions],
    ) -> None:
        self._reader = reader
        self._resources: OpenResources | None = resources  # None: somebody else closes it
        self._parent = parent
        self._partitions = partitions
        self._group = group
        self._start = start
        self._max_records = max_records
        self._selection = selection
        self._positions: dict[int, int] | None = None  # by partition, what comes next; None: not asked yet
        self._reads: dict[int, asyncio.Task[Batch]] = {}
        self._closed = False

    async def __aenter__(self) -> "PullConsumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            for message in await self.poll(_WAIT_S):
                yield message

    async def positions(self) -> dict[int, int]:
        """The next offset of each partition: behind everything that `poll` returned."""
        return dict(await self._begun())

    async def poll(self, wait_seconds: float = _WAIT_S) -> list[Message]:
        """Messages of one partition or more, each partition's in order; none when none came within `wait_seconds`.
        Raises `OffsetOutOfRange` where retention took what comes next: see `skip_gone`. What other partitions have is
        for the next `poll` then."""
        positions = await self._begun()
        for partition, offset in positions.items():
            if partition not in self._reads:
                self._read(partition, offset)
        until = asyncio.get_running_loop().time() + wait_seconds
        while True:
            left = until - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(
                self._reads.values(), timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED
            )
            if self._closed:
                raise ClientClosed("the consumer is closed")
            messages: list[Message] = []
            came = [each for each, task in self._reads.items() if task in done]
            for partition in came:
                if self._reads[partition].exception() is not None:
                    self._reads.pop(partition).result()  # raises before anything is taken that nobody would get
            for partition in came:
                batch = self._reads.pop(partition).result()
                messages += batch.messages()
                positions[partition] = batch.next_offset
                self._read(partition, batch.next_offset)
            if messages or left <= 0:
                return messages

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Go on at these offsets, by partition."""
        positions = await self._begun()
        for partition, offset in offsets.items():
            if partition not in positions:
                raise InvalidArgument(f"partition {partition} is not read here")
            positions[partition] = offset
            await self._stop(self._reads.pop(partition, None))

    async def seek_to_time(self, time_ms: int) -> None:
        """Go on at the first messages that were stored at or after `time_ms` (ms since 1970-01-01 UTC)."""
        await self.seek({each: await self._reader.offset_at(self._parent, each, time_ms) for each in await self._own()})

    async def seek_to(self, start: Start) -> None:
        """Go on at the oldest messages, or behind the newest."""
        own = await self._own()
        bounds = [each for each in await self._reader.bounds(self._parent) if each.partition in own]
        await self.seek({each.partition: each.begin if start == "earliest" else each.end for each in bounds})

    async def skip_gone(self) -> None:
        """Go on at the oldest messages of the partitions of which retention took what comes next, and at the end of
        those that do not have it any more. The others stay where they are."""
        positions = await self._begun()
        bounds = await self._reader.bounds(self._parent)
        inside = {each.partition: min(max(positions.get(each.partition, 0), each.begin), each.end) for each in bounds}
        await self.seek({each: offset for each, offset in inside.items() if offset != positions.get(each, offset)})

    async def lag(self) -> dict[int, int]:
        """How many messages lie before the end, by partition, wanted or not."""
        positions = await self._begun()
        bounds = await self._reader.bounds(self._parent)
        return {each.partition: each.end - positions[each.partition] for each in bounds if each.partition in positions}

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Have the group begin at these offsets when it is read again; without any, behind everything that `poll`
        returned. Returns when that is in the log."""
        if self._group is None:
            raise InvalidArgument("a consumer without a group has nothing to commit for")
        await self._reader.commit_offsets(
            self._group, self._parent, offsets if offsets is not None else await self._begun()
        )

    async def close(self) -> None:
        """Stop reading. Nothing is committed."""
        self._closed = True
        if self._resources is not None:
            self._resources.discard(self)
        reads, self._reads = self._reads, {}
        for task in reads.values():
            await self._stop(task)

    def stop_waiting(self, *, for_node: bool) -> None:
        """`close` waits for nothing."""

    def hand_over(self) -> OpenResources:
        """Whose it is: who asks closes it from now on."""
        resources, self._resources = self._resources, None
        assert resources is not None
        return resources

    async def _begun(self) -> dict[int, int]:
        """Positions; found out at first."""
        if self._closed:
            raise ClientClosed("the consumer is closed")
        if self._resources is not None:
            self._resources.add(self)
        if self._positions is None:
            bounds = await self._reader.bounds(self._parent)
            known = {} if self._group is None else await self._reader.committed_offsets(self._group, self._parent)
            positions: dict[int, int] = {}
            for each in bounds:
                begin = each.begin if self._start == "earliest" else each.end
                # What retention took since is gone, and what a shorter log does not have is to come.
                positions[each.partition] = min(max(known.get(each.partition, begin), each.begin), each.end)
            if self._partitions is not None:
                if unknown := set(self._partitions) - set(positions):
                    raise InvalidArgument(f"there are no partitions {sorted(unknown)}: there are {len(positions)}")
                positions = {each: positions[each] for each in self._partitions}
            self._positions = positions
        return self._positions

    async def _own(self) -> list[int]:
        return list(await self._begun())

    def _read(self, partition: int, offset: int) -> None:
        task = self._reads[partition] = asyncio.create_task(
            self._reader.pull(
                self._parent,
                partition,
                offset,
                max_records=self._max_records,
                wait_seconds=_WAIT_S,
                **self._selection,
            )
        )
        task.add_done_callback(_heard)

    async def _stop(self, task: "asyncio.Task[Batch] | None") -> None:
        if task is not None:
            task.cancel()
            try:
                await task
            except (asyncio.CancelledError, SluiceError):
                return


def _heard(read: "asyncio.Task[Batch]") -> None:
    """Have asyncio not complain of an error of a read that nobody waits for any more: who polls again is told."""
    if not read.cancelled():
        read.exception()
