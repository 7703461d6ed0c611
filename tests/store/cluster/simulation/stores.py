"""The real store of a node on a simulated loop and disk, in place of the light replica."""

import asyncio
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from rocksdict import Checkpoint

import record
from record.layout import Kind
from store.api import Appended, Commit
from store.cluster.history import History
from store.cluster.leadership import Leadership
from store.cluster.member import NotLeading
from store.cluster.replica import Fill, Replica
from store.cluster.slot import Slot
from store.config import StoreConfig, TierConfig
from store.tier.objects import Objects
from store.views.database.database import Database
from store.views.digest import digest_of_views
from tests.store.cluster.simulation.loop import ClusterLoop
from tests.store.simulation.disk import File, SimulatedDisk

CONFIG = StoreConfig(
    segment_size=4096,
    partitions=4,
    generation_segments=16,
    tail_cache_bytes=0,
    checkpoint_keys=16,
    max_wait_ms=0,
    retention_bytes=12 * 4096,
    retention_check_s=0.5,
    tier=TierConfig("memory", retention_local_bytes=2 * 4096, cache_bytes=20_000),
)
SNAPSHOT_BYTES = 3000
CHECK_S = 0.4  # between two looks at snapshots
_PADDING = 300  # bytes of a message, so that there are segments to remove
_BEGIN_MS = 1_700_000_000_000


class NodeDisk(SimulatedDisk):
    """A disk whose folder was there before."""

    def remove(self, path: Path) -> None:
        if path.exists():
            self._files.setdefault(path.stat().st_ino, File(bytearray(path.read_bytes())))
        super().remove(path)


class StoreDisk:
    """What a crash leaves of a node's folder. Each process has a folder of its own, so that an earlier one, which
    stands still, has nothing to write to."""

    def __init__(self, folder: Path, rng: Random) -> None:
        self.history = History().pack()  # that it has for sure
        self.digests = {0: 0}  # of what was folded, by the position up to which it was
        self.folded: dict[int, int] = {}  # slot → checksum
        self.path = folder
        self._folder = folder
        self._rng = rng
        self._views: list[Path] = []  # copies of what RocksDB may have on disk
        self._count = 0
        self.disk: NodeDisk

    def start(self) -> None:
        """The last process is gone, or the machine was without power. A new one starts."""
        rng = self._rng
        old = self.path if self._count else None
        if old is not None:
            if rng.random() < 0.5:
                self.disk.cut_power()
            self.disk.dead = True
        root = self._name()
        root.mkdir(parents=True)
        self.path = root / "data"
        if old is not None and old.exists():
            shutil.copytree(old, self.path, ignore=shutil.ignore_patterns("views", "lock", "*.new"))
            if self._views:
                shutil.copytree(rng.choice(self._views), self.path / "views")
        self.disk = NodeDisk(root, Random(rng.random()))
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self.disk.sync_folder(folder)  # what was copied is on the disk

    def die(self) -> None:
        """Take nothing any more."""
        if self._count:
            self.disk.dead = True

    def forget_views(self) -> None:
        """They are removed, and that is on the disk."""
        self._views = []

    def save_views(self, database: Database) -> None:
        """RocksDB may have written its memory to disk just now."""
        path = self._name()
        Checkpoint(database._db).create_checkpoint(str(path))
        self._views = [*self._views[-2:], path]

    def _name(self) -> Path:
        self._count += 1
        return self._folder / f"{self._count}"


def clock_of(loop: ClusterLoop) -> Callable[[], int]:
    """Store time."""
    return lambda: _BEGIN_MS + int(loop.time() * 1000)


class Watched:
    """A leadership whose decisions are told of."""

    def __init__(self, leadership: Leadership, on_decided: Callable[[History, bytes], None]) -> None:
        self.max_batch = leadership.max_batch
        self._leadership = leadership
        self._on_decided = on_decided

    @property
    def history(self) -> History:
        return self._leadership.history

    def close(self) -> None:
        self._leadership.close()

    async def decide(self, position: int, batch: bytes) -> History:
        history = await self._leadership.decide(position, batch)
        self._on_decided(history, batch)
        return history


class StoreReplica(Replica):
    """As `MemoryReplica`, with the node's real store."""

    digest: int
    folded: dict[int, int]
    on_folded: Callable[[int, int], None]
    on_acknowledged: Callable[[History, bytes], None]
    digest_at: Callable[[int], int]
    kept: StoreDisk

    @classmethod
    async def start(
        cls,
        kept: StoreDisk,
        loop: ClusterLoop,
        on_folded: Callable[[int, int], None],
        on_acknowledged: Callable[[History, bytes], None],
        digest_at: Callable[[int], int],
        stores: "list[StoreReplica]",
        objects: Objects,
    ) -> "StoreReplica":
        replica = await cls.open(kept.path, CONFIG, kept.disk, clock_of(loop), lambda: None, objects)
        assert isinstance(replica, StoreReplica)
        stores.append(replica)
        replica.kept, replica.on_folded, replica.on_acknowledged = kept, on_folded, on_acknowledged
        replica.digest_at = digest_at
        replica.digest = kept.digests[replica.history.end]
        replica.folded = {slot: each for slot, each in kept.folded.items() if slot <= replica.history.slot}
        replica._watch()
        return replica

    async def apply(self, slot: Slot, history: History) -> None:
        await super().apply(slot, history)
        if history.slot == 1:
            self._watch()
        self._note(history)

    async def lead(self, leadership: Leadership) -> None:
        def on_decided(history: History, batch: bytes) -> None:
            self._note(history)
            self.on_acknowledged(history, batch)

        await super().lead(Watched(leadership, on_decided))  # type: ignore[arg-type]
        self._watch()

    async def follow(self) -> None:
        await super().follow()
        self.digest = self.kept.digests[self.history.end]
        self._watch()

    async def replace(self, fill: Fill) -> None:
        self.kept.forget_views()
        await super().replace(fill)
        end = self.history.end
        self.digest = self.kept.digests[end] = self.digest_at(end) if end else 0
        self.folded = {}
        if self.local is not None:
            self.kept.save_views(self.local._database)
        self._watch()

    async def append(self, payloads: Sequence[bytes]) -> None:
        """Returns when the messages are committed. Raises StoreError if that is unknown, or not so."""
        if self.engine is None:
            raise NotLeading("this node does not lead")
        padding = b" " * _PADDING
        frames = [record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", payload + padding) for payload in payloads]
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.engine.append(frames, lambda appended: answer.cancelled() or answer.set_result(appended))
        error = (await answer).error
        if error is not None:
            raise error

    def views_digest(self) -> bytes:
        """Of the views themselves."""
        local = self.local
        assert local is not None
        local._views.checkpoint(local._writer.durable)
        return digest_of_views(local._database, CONFIG.segment_size * CONFIG.generation_segments)

    def _note(self, history: History) -> None:
        self.folded[history.slot] = self.kept.folded[history.slot] = history.checksum

    def _watch(self) -> None:
        """Hear of each batch that is folded."""
        if self.local is not None:
            self.local.on_commit(self._on_commit)

    def _on_commit(self, commit: Commit) -> None:
        self.digest = zlib.crc32(commit.data, self.digest)
        self.kept.digests[commit.end] = self.digest
        self.on_folded(commit.end, self.digest)
        if self.local is not None and self.kept._rng.random() < 0.03:
            self.kept.save_views(self.local._database)
