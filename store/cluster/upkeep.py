"""What a node does for the shared log beside writing and following it: snapshots, and the removal of old slots.

A follower writes the next snapshot when there is enough behind the last one, and the node that wrote that one comes
first, since it has most of its tables. The leader has other things to do, and writes one when nobody did for four times
as long. If two nodes write one at a time, the first one counts.

Nodes of a site that stands by write nothing: their storage may be a copy that another one is replicated to.

The leader removes slots: those before the older one of the two snapshots that stay. So there are always two snapshots
that a node can begin with, and all slots behind them.
"""

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import Final

from store.cluster.member import stands_by
from store.cluster.replica import Replica
from store.cluster.shared_log import SharedLog, SharedLogUnavailable
from store.cluster.snapshot_writer import REST, SnapshotWriter
from store.cluster.snapshots import (
    KEPT,
    Numbered,
    SnapshotUnreadable,
    lacks,
    newest_numbers,
    read_contents,
    remove_old,
    snapshots_of,
    written_parts,
)
from store.log.writer import Clock

logger = logging.getLogger(__name__)

SNAPSHOT_SLOTS: Final = 1 << 15  # behind the last snapshot, after which there is another one, whatever their bytes
CHECK_S: Final = 10.0
_MOST_PAUSE_S: Final = 600.0  # after snapshots that failed
_UNREACHED: Final = 30  # looks without an answer, after which there is a warning
_OTHERS: Final = (1.2, 1.5)  # how many times as long a follower waits that did not write the last snapshot
_LEADER: Final = 4.0  # and the leader


class Upkeep:
    """Writes the snapshots of one node, and removes old slots while it leads.

    `run` is its only task. `newest` is the newest snapshot that its last look found.
    """

    def __init__(
        self,
        log: SharedLog,
        replica: Replica,
        path: Path,
        node: str,
        snapshot_bytes: int,
        clock: Clock,
        rng: Random,
        check_s: float,
        site: str = "",
    ) -> None:
        self.newest: Numbered | None = None
        self._log = log
        self._replica = replica
        self._path = path
        self._node = node
        self._snapshot_bytes = snapshot_bytes
        self._rng = rng
        self._check_s = check_s
        self._site = site
        self._writer = SnapshotWriter(log, node, clock, REST)
        self._patience = self._draw()
        self._checked = 0  # the newest snapshot of those that were found to have all their parts

    async def run(self) -> None:
        """Look once in a while, until cancelled."""
        pause, unreached = self._check_s, 0
        while True:
            await asyncio.sleep(pause)
            try:
                await self._look()
                pause, unreached = self._check_s, 0
            except SharedLogUnavailable as error:  # whoever reads slots has said so, or only snapshots are refused
                unreached += 1
                if unreached == _UNREACHED:
                    logger.warning("snapshots of the shared log: %s", error)
            except Exception as error:  # noqa: BLE001  of the copy, its disk or the snapshots: the log goes on without
                pause = min(2 * pause, _MOST_PAUSE_S)
                logger.warning("snapshots of the shared log: %s; the next look is in %.0f s", error, pause)

    async def _look(self) -> None:
        history = self._replica.history
        founded = history.founded
        if founded is None or self._replica.local is None or stands_by(history, self._site):
            return
        leads = self._replica.engine is not None
        if leads or self._is_due():
            snapshots = await snapshots_of(self._log, founded.log_id)
            newest = snapshots[0] if snapshots else None
            if newest != self.newest:
                self.newest = newest
                self._patience = self._draw()
            if leads and len(snapshots) == KEPT:
                await self._trim(snapshots)
            if self._is_due():
                await self._write()

    def _is_due(self) -> bool:
        history, newest = self._replica.history, self.newest
        slot, position = (newest.manifest.slot, newest.manifest.position) if newest is not None else (0, 0)
        if self._replica.engine is not None:
            times = _LEADER
        elif newest is not None and newest.manifest.node == self._node:
            times = 1.0
        else:
            times = self._patience
        return history.end - position >= times * self._snapshot_bytes or history.slot - slot >= times * SNAPSHOT_SLOTS

    def _draw(self) -> float:
        return self._rng.uniform(*_OTHERS)

    async def _write(self) -> None:
        local = self._replica.local
        number = max(await newest_numbers(self._log), default=0) + 1
        # If the newest one cannot be read or is of another log, this one has nothing of it.
        before = self.newest if self.newest is not None and self.newest.number == number - 1 else None
        if local is not None and (written := await self._writer.write(local, self._path, before, number)) is not None:
            self.newest = written
            await remove_old(self._log)

    async def _trim(self, snapshots: list[Numbered]) -> None:
        """Remove the slots that both snapshots have. Raises `SnapshotUnreadable` if one of them lacks a part."""
        if self._checked != snapshots[0].number:
            parts = await written_parts(self._log)
            for each in snapshots:
                try:
                    missing = lacks(parts, each.manifest, await read_contents(self._log, each.manifest))
                except SnapshotUnreadable as error:
                    missing = [str(error)]
                if missing and await newest_numbers(self._log) == [every.number for every in snapshots]:
                    lost = f"snapshot {each.number} lacks {len(missing)} parts, such as {missing[0]}"
                    raise SnapshotUnreadable(f"no slots are removed: {lost}")
                if missing:  # others have taken its place meanwhile
                    return
            self._checked = snapshots[0].number
        await self._log.trim(min(each.manifest.slot for each in snapshots))
