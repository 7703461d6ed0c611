"""A reader of partitions by offset, which keeps its own place.

Readers do not share messages: several of them on the same parent topic each get all of it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Unpack

from cloud_sdk.consumer_options import SelectionOptions, Start
from cloud_sdk.consuming.partition_reader import PartitionReader
from cloud_sdk.errors import ClientClosed, InvalidArgument, SluiceError
from cloud_sdk.lifetime.closing import Closable
from cloud_sdk.lifetime.open_resources import OpenResources
from cloud_sdk.message import Batch, Message

_WAIT_S: Final = 20.0  # how long one Pull waits at the end


class PullConsumer(Closable):
    """An async context manager and an endless async iterator of `Message`. For one task at a time.

    It reads the given `partitions` of `parent`, or all of them, also those that the parent topic gets later. With a
    `group` it begins at the offsets that the group has committed, else at `start`. One batch of each partition is read
    ahead.
    """

    def __init__(
        self,
        reader: PartitionReader,
        resources: OpenResources,
        parent: str,
        *,
        partitions: Sequence[int] | None = None,
        group: str | None = None,
        start: Start = "earliest",
        max_records: int = 512,
        max_bytes: int = 0,
        **selection: Unpack[SelectionOptions],
    ) -> None:
        self._reader = reader
        self._resources: OpenResources | None = resources  # None: its owner closes it
        self._parent = parent
        self._partitions = partitions
        self._group = group
        self._start = start
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._selection = selection
        self._positions: dict[int, int] | None = None  # next offsets by partition; None: not known yet
        self._reads: dict[int, asyncio.Task[Batch]] = {}
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            for message in await self.poll(_WAIT_S):
                yield message

    async def positions(self) -> dict[int, int]:
        """Return the next offset of each partition, behind everything that `poll` returned."""
        return dict(await self._load_positions())

    async def poll(self, wait_seconds: float = _WAIT_S) -> list[Message]:
        """Return messages of one or more partitions, each partition's in order; none if none came within
        `wait_seconds`. Raises `OffsetOutOfRange` if retention has removed the next message of a partition: see
        `skip_gone`. The next `poll` returns the messages of the other partitions then."""
        positions = await self._load_positions()
        for partition, offset in positions.items():
            if partition not in self._reads:
                self._start_read(partition, offset)
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
                    self._reads.pop(partition).result()  # raises before a batch is removed that would be lost
            for partition in came:
                batch = self._reads.pop(partition).result()
                messages += batch.messages()
                positions[partition] = batch.next_offset
                added = range(len(positions), batch.partitions) if self._partitions is None else ()
                positions.update(dict.fromkeys(added, 0))
                for each in (partition, *added):
                    self._start_read(each, positions[each])
            if messages or left <= 0:
                return messages

    async def seek(self, offsets: Mapping[int, int]) -> None:
        """Continue at these offsets, by partition. Raises `InvalidArgument` for a partition that is not read here."""
        positions = await self._load_positions()
        for partition, offset in offsets.items():
            if partition not in positions:
                raise InvalidArgument(f"partition {partition} is not read here")
            positions[partition] = offset
            await self._cancel(self._reads.pop(partition, None))

    async def seek_to_time(self, time_ms: int) -> None:
        """Continue at the first messages that were stored at or after `time_ms` (ms since 1970-01-01 UTC)."""
        positions = await self.positions()
        await self.seek({each: await self._reader.offset_at(self._parent, each, time_ms) for each in positions})

    async def seek_to(self, start: Start) -> None:
        """Continue at the oldest messages, or behind the newest."""
        positions = await self.positions()
        bounds = [each for each in await self._reader.partitions(self._parent) if each.partition in positions]
        await self.seek({each.partition: each.begin if start == "earliest" else each.end for each in bounds})

    async def skip_gone(self) -> None:
        """Move positions that a partition does not hold to its nearest bound: to the oldest message if retention has
        removed the next one, and to the end if the log has become shorter. Other positions stay."""
        positions = await self._load_positions()
        bounds = await self._reader.partitions(self._parent)
        inside = {each.partition: min(max(positions.get(each.partition, 0), each.begin), each.end) for each in bounds}
        await self.seek({each: offset for each, offset in inside.items() if offset != positions.get(each, offset)})

    async def lag(self) -> dict[int, int]:
        """Return how many messages lie between the position and the end, by partition, selected or not."""
        positions = await self._load_positions()
        bounds = await self._reader.partitions(self._parent)
        return {each.partition: each.end - positions[each.partition] for each in bounds if each.partition in positions}

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Store the offsets at which the group continues when it is read again: these, or behind everything that `poll`
        returned. Returns when the log has them. Raises `InvalidArgument` without a group."""
        if self._group is None:
            raise InvalidArgument("a consumer without a group cannot commit")
        await self._reader.commit_offsets(
            self._group, self._parent, offsets if offsets is not None else await self._load_positions()
        )

    async def close(self) -> None:
        """Stop reading. Nothing is committed."""
        self._closed = True
        if self._resources is not None:
            self._resources.discard(self)
        reads, self._reads = self._reads, {}
        for task in reads.values():
            await self._cancel(task)

    def stop_waiting(self, *, for_node: bool) -> None:
        """Nothing to do: `close` does not wait."""

    def hand_over(self) -> OpenResources:
        """Leave it to the caller to close this consumer with the client. Returns the client's open resources."""
        resources, self._resources = self._resources, None
        assert resources is not None
        return resources

    async def _load_positions(self) -> dict[int, int]:
        """Return the positions, which the first call asks the node for."""
        if self._closed:
            raise ClientClosed("the consumer is closed")
        if self._resources is not None:
            self._resources.add(self)
        if self._positions is None:
            bounds = await self._reader.partitions(self._parent)
            known = {} if self._group is None else await self._reader.committed_offsets(self._group, self._parent)
            positions: dict[int, int] = {}
            for each in bounds:
                is_added = bool(known) and each.partition > max(known)  # after the group committed
                begin = each.begin if is_added or self._start == "earliest" else each.end
                # A committed offset may be out of range: retention removed it, or the log is shorter than it was.
                positions[each.partition] = min(max(known.get(each.partition, begin), each.begin), each.end)
            if self._partitions is not None:
                if unknown := set(self._partitions) - set(positions):
                    raise InvalidArgument(f"there are no partitions {sorted(unknown)}: there are {len(positions)}")
                positions = {each: positions[each] for each in self._partitions}
            self._positions = positions
        return self._positions

    def _start_read(self, partition: int, offset: int) -> None:
        task = self._reads[partition] = asyncio.create_task(
            self._reader.pull(
                self._parent,
                partition,
                offset,
                max_records=self._max_records,
                max_bytes=self._max_bytes,
                wait_seconds=_WAIT_S,
                known_partitions=len(self._positions or ()) if self._partitions is None else 0,
                **self._selection,
            )
        )
        task.add_done_callback(_retrieve_error)

    async def _cancel(self, task: "asyncio.Task[Batch] | None") -> None:
        if task is not None:
            task.cancel()
            try:
                await task
            except (asyncio.CancelledError, SluiceError):
                return


def _retrieve_error(read: "asyncio.Task[Batch]") -> None:
    """Keep asyncio from logging an error that the next `poll` raises."""
    if not read.cancelled():
        read.exception()
