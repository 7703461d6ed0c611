"""A light replica: batches with real frames, a checksum in place of views, and a checkpoint that outlives a crash."""

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import record
from record.layout import Kind
from store.cluster.history import History, unpack_history
from store.cluster.leadership import Leadership
from store.cluster.member import NotLeading
from store.cluster.slot import Slot
from store.errors import StoreError

MOST_FRAMES = 6  # of a batch


@dataclass(slots=True)
class Disk:
    """What a crash leaves of a replica."""

    history: bytes = field(default_factory=lambda: History().pack())
    digest: int = 0
    folded: dict[int, int] = field(default_factory=dict)  # slot → checksum


class MemoryReplica:
    """`on_folded` is called with the end and the digest of what is folded; `on_acknowledged` with a batch and the
    history with it, before anybody is answered."""

    def __init__(
        self,
        disk: Disk,
        rng: Random,
        on_folded: Callable[[int, int], None],
        on_acknowledged: Callable[[History, bytes], None],
    ) -> None:
        self.history = unpack_history(disk.history)
        self.digest = disk.digest
        self.folded = dict(disk.folded)
        self._disk = disk
        self._rng = rng
        self._on_folded = on_folded
        self._on_acknowledged = on_acknowledged
        self._leadership: Leadership | None = None
        self._appends: list[tuple[list[bytes], asyncio.Future[None]]] = []
        self._appended = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    async def apply(self, slot: Slot, history: History) -> None:
        await self._fold(slot.batch, history)

    async def lead(self, leadership: Leadership) -> None:
        await asyncio.sleep(self._rng.random() * 0.02)
        self._leadership = leadership
        self._writer = asyncio.ensure_future(self._write(leadership))

    async def follow(self) -> None:
        if self._writer is not None:
            await self._writer
            self._writer = None

    def views_digest(self) -> bytes:
        return b"%d" % self.digest

    async def append(self, payloads: list[bytes]) -> None:
        """Returns when the messages are committed. Raises StoreError if that is unknown, or not so."""
        if self._leadership is None:
            raise NotLeading("this node does not lead")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._appends.append((payloads, done))
        self._appended.set()
        await done

    async def _write(self, leadership: Leadership) -> None:
        taken: list[tuple[list[bytes], asyncio.Future[None]]] = []
        watch = asyncio.ensure_future(leadership.wait_until_over())
        try:
            while not watch.done():
                waiting = asyncio.ensure_future(self._appended.wait())
                await asyncio.wait((waiting, watch), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not self._appends:
                    continue
                size = 0
                while self._appends and size + len(self._appends[0][0]) <= MOST_FRAMES:
                    size += len(self._appends[0][0])
                    taken.append(self._appends.pop(0))
                if not self._appends:
                    self._appended.clear()
                await self._commit(leadership, [payload for payloads, _ in taken for payload in payloads])
                for _, done in taken:
                    if not done.done():
                        done.set_result(None)
                taken = []
        except StoreError:
            pass
        self._leadership = None
        why = await watch
        for _, done in (*taken, *self._appends):
            if not done.done():
                done.set_exception(why)
        self._appends = []
        self._appended.clear()

    async def _commit(self, leadership: Leadership, payloads: list[bytes]) -> None:
        frames = [record.frame(Kind.MESSAGE, 0, 0, b"t", b"", b"", payload) for payload in payloads]
        end = leadership.history.end
        assert leadership.history.founded is not None
        base = -(-end // leadership.history.founded.segment_size) * leadership.history.founded.segment_size
        position = end if end + sum(map(len, frames)) <= base else base
        batch = record.seal(frames, position, leadership.history.epoch, 0, end)
        history = await leadership.decide(position, batch)
        self._on_acknowledged(history, batch)
        await self._fold(batch, history)

    async def _fold(self, batch: bytes, history: History) -> None:
        if self._rng.random() < 0.1:
            await asyncio.sleep(self._rng.random() * 0.02)
        self.digest = zlib.crc32(batch, self.digest)
        self.history = history
        self.folded[history.slot] = history.checksum
        self._on_folded(history.end, self.digest)
        if self._rng.random() < 0.1:
            self._disk.history, self._disk.digest, self._disk.folded = history.pack(), self.digest, dict(self.folded)
