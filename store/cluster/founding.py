"""Founds a shared log with the log of a single node.

The node's log and views become the first snapshot of the shared log, and slot 1 says where they end. So each node of
the cluster begins with the snapshot. The single node's folder stays as it is.
"""

import asyncio
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from store.cluster.follower import Follower
from store.cluster.history import History
from store.cluster.leadership import write_slot
from store.cluster.shared_log import SharedLog, SharedLogUnavailable
from store.cluster.slot import Founded, Slot
from store.cluster.snapshot_writer import SnapshotWriter
from store.cluster.snapshots import newest_numbers
from store.config import StoreConfig
from store.data_folder import is_data_folder, read_meta
from store.errors import StoreError
from store.log.disk import Disk
from store.log.writer import Clock
from store.opening import OpenedStore, open_store

_DECIDED_S: Final = 60.0  # for the answer to slot 1


@dataclass(slots=True, frozen=True)
class Begun:
    """What the shared log begins with."""

    log_id: str
    begin: int  # of the log
    position: int  # end of the log
    size: int  # bytes of the snapshot


async def found(path: Path, config: StoreConfig, log: SharedLog, node: str, disk: Disk, clock: Clock) -> Begun:
    """Found the shared log, which must be empty, with the log of the stopped single node whose folder this is.

    All records are read. `node` is named in the snapshot. If it fails or dies before the end, the shared log is not
    founded, and another call begins again. Raises `StoreError`, `LogCorrupt` and OSError.
    """
    if not is_data_folder(path):
        raise StoreError(f"there is no data folder at {path}")
    if read_meta(path).shared:
        raise StoreError(f"{path} has a copy of a shared log: let it leave its cluster first")
    if await log.end() != 1 or await log.read(1) is not None:
        raise StoreError("the shared log has slots already: give an address where there is nothing")
    loop = asyncio.get_running_loop()
    opened = await loop.run_in_executor(None, open_store, path, config, disk, clock)
    if opened.tier is not None:  # the folder stays as it is
        opened.tier.close()
        opened.tier = None
    meta = opened.meta
    founded = Founded(uuid.uuid4().hex, meta.segment_size, meta.partitions, meta.generation_segments)
    opened.views.slots_at = lambda position: _history(founded, meta.epoch, position).pack()
    store = Follower(opened, opened.config, loop)
    store.meta = msgspec.structs.replace(meta, log_id=founded.log_id, shared=True)
    await store.start()
    try:
        return await _found(store, opened, path, log, founded, SnapshotWriter(log, node, clock, rest=0.0))
    finally:
        opened.views.slots_at = None
        await store.close()


async def _found(
    store: Follower, opened: OpenedStore, path: Path, log: SharedLog, founded: Founded, writer: SnapshotWriter
) -> Begun:
    if not opened.views.position:
        raise StoreError(f"{path} has no records: start the nodes of the cluster, they found the log")
    number = max(await newest_numbers(log), default=0) + 1
    snapshot = await writer.write(store, path, None, number)
    if snapshot is None:
        raise StoreError("somebody else uses this address: give one where there is nothing")
    manifest = snapshot.manifest
    slot = _slot(founded, opened.meta.epoch, manifest.position)
    try:
        async with asyncio.timeout(_DECIDED_S):
            decided = await write_slot(log, slot, lambda _: None)
    except TimeoutError:
        raise SharedLogUnavailable("whether the shared log is founded is not known: see what it has") from None
    if decided != slot.data:
        raise StoreError("somebody else has founded the shared log meanwhile")
    return Begun(founded.log_id, manifest.begin, manifest.position, manifest.size)


def _slot(founded: Founded, epoch: int, position: int) -> Slot:
    return History().next(founded, position=position, epoch=epoch)


def _history(founded: Founded, epoch: int, position: int) -> History:
    return History().after(_slot(founded, epoch, position))
