"""Positions of consumer groups at another cluster: the checkpoints of Kafka's MirrorMaker 2.

The two clusters have the messages of a parent topic in different orders and partitions, so offsets of one say nothing
at the other. But what the source has not stored yet, the target cannot have yet. So an offset sync is a time of the
target's log, and the offsets at which the source ended after that time. A group that has finished all below these
offsets has finished all that the target stored before that time, and begins there at that time.

If the target's own messages are copied back, they are messages of the group, too. A sync then waits until the connector
back has copied all that the target had at its time, and looks at the ends of the source after that.

Syncs are entries of the target's bucket `connect`: `sync/CLUSTER/CONNECTOR/PARENT`. The entry `sync/CLUSTER/CONNECTOR`
tells the time there. All calls are made again in the next round, so a round that fails or is cut short does no harm.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from cloud_sdk import Client, Group, NotAllowed, OffsetOutOfRange, RevisionConflict, SluiceError
from connect.connectors.sluice.offset_syncs import OffsetSync, OffsetSyncs
from connect.regular_expressions import RegularExpression

log = logging.getLogger(__name__)

BUCKET: Final = "connect"

Place = tuple[int, int, int]  # of a group in a partition: floor, next, messages that are not finished between them
Places = Mapping[int, Place]  # by partition of a parent topic


class GroupPositions:
    """Moves groups at the target to where they are at the source."""

    def __init__(
        self,
        source: Client,
        target: Client,
        key: str,
        topics: Iterable[str],
        *,
        groups: Sequence[str],
        excluded: Sequence[str],
        reverse: str | None,
    ) -> None:
        """key: `sync/CLUSTER/CONNECTOR`. topics: the filters of the connector. groups, excluded: regular expressions of
        names. reverse: the connector at the target that copies back; None: there is none."""
        self._source = source
        self._target = target
        self._key = key
        self._parents = sorted({each.partition("/")[0] for each in topics})
        self._groups = [RegularExpression(each) for each in groups]
        self._excluded = [RegularExpression(each) for each in excluded]
        self._reverse = None if reverse is None else f"connect-{reverse}"
        self._awaited: dict[str, OffsetSync] = {}  # by parent: what the target had, and when; to be copied back
        self._seen: dict[tuple[str, str], Places] = {}  # by parent and group: its places at the target, a round ago

    async def keep(self, interval_s: float) -> None:
        """Make a round after each interval, until this is cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.round()
            except SluiceError as error:
                log.warning("positions of groups are not copied now: %s", error)

    async def round(self) -> None:
        """Write an offset sync of each parent topic, and move groups. Raises `SluiceError`."""
        time_ms = await self._time()
        groups = [each for each in await self._source.groups() if self._is_wanted(each.name)]
        there = {each.name: each for each in await self._target.groups()}
        seen: dict[tuple[str, str], Places] = {}
        for parent in self._parents:
            syncs = await self._synced(parent, time_ms, there)
            offsets: dict[int, dict[int, int]] = {}  # by time: those of the target, by partition
            for group in groups:
                floors = {number: place[0] for number, place in places_of(group, parent).items()}
                if not floors:
                    continue
                since_ms = syncs.time_of(floors)
                if since_ms not in offsets:
                    offsets[since_ms] = await self._offsets_at(parent, since_ms)
                places = places_of(there.get(group.name), parent)
                seen[parent, group.name] = await self._moved(group.name, parent, places, offsets[since_ms])
        self._seen = seen

    def _is_wanted(self, group: str) -> bool:
        if group.startswith("$") or any(each.matches(group) for each in self._excluded):
            return False
        return any(each.matches(group) for each in self._groups)

    async def _time(self) -> int:
        """The time at the target: it stores nothing more before that."""
        bucket = self._target.bucket(BUCKET)
        await bucket.put(self._key, b"{}")
        entry = await bucket.get(self._key)
        return 0 if entry is None else entry.put_ms

    async def _synced(self, parent: str, time_ms: int, there: Mapping[str, Group]) -> OffsetSyncs:
        """The syncs of a parent topic, with a new one if there is one."""
        bucket, key = self._target.bucket(BUCKET), f"{self._key}/{parent}"
        entry = await bucket.get(key)
        try:
            syncs = OffsetSyncs() if entry is None else OffsetSyncs.unpacked(entry.value)
        except ValueError:  # who may write to the bucket may write anything
            syncs = OffsetSyncs()
        new = await self._new_sync(parent, time_ms, there)
        if new is not None:
            syncs.add(new)
            with suppress(RevisionConflict):  # another worker has the task by now, and writes its own
                await bucket.put(key, syncs.packed(), revision=0 if entry is None else entry.revision)
        return syncs

    async def _new_sync(self, parent: str, time_ms: int, there: Mapping[str, Group]) -> OffsetSync | None:
        if self._reverse is None:
            return OffsetSync(await _ends(self._source, parent), time_ms)
        awaited, copied = self._awaited.get(parent), places_of(there.get(self._reverse), parent)
        if awaited is not None:
            if any(end and (n not in copied or copied[n][0] < end) for n, end in enumerate(awaited.ends)):
                log.warning("positions below %s wait for %s, which copies messages back", parent, self._reverse)
                return None
            awaited = OffsetSync(await _ends(self._source, parent), awaited.time_ms)
        self._awaited[parent] = OffsetSync(await _ends(self._target, parent), time_ms)
        return awaited

    async def _offsets_at(self, parent: str, time_ms: int) -> dict[int, int]:
        return {
            each.partition: await self._target.offset_at(parent, each.partition, time_ms)
            for each in await self._target.partitions(parent)
        }

    async def _moved(self, group: str, parent: str, places: Places, offsets: Mapping[int, int]) -> Places:
        """Move a group at the target forward, unless it is in use there: its places are others than a round ago.
        Returns its places now."""
        if places and self._seen.get((parent, group)) != places:
            return places
        ahead = {number: at for number, at in offsets.items() if number not in places or places[number][0] < at}
        if not ahead:
            return places
        try:
            await self._target.reset_group(group, parent, offsets=ahead)
        except (NotAllowed, OffsetOutOfRange) as error:
            log.warning("the position of group %s below %s is not copied: %s", group, parent, error)
            return places
        return {**places, **{number: (at, at, 0) for number, at in ahead.items()}}


def places_of(group: Group | None, parent: str) -> Places:
    """The places of a group in the partitions of a parent topic. A queue of a partition is named `PARENT[NUMBER]`."""
    found: dict[int, Place] = {}
    for queue in () if group is None else group.queues:
        name, _, number = queue.queue.removesuffix("]").rpartition("[")
        if name == parent and number.isdecimal():
            found[int(number)] = (queue.floor, queue.next, queue.unfinished)
    return found


async def _ends(client: Client, parent: str) -> list[int]:
    return [each.end for each in await client.partitions(parent)]
