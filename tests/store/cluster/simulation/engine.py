"""A simulated engine of a shared log: slow, with lost and repeated answers, with writes that land late, and away for a
while. If it is told to, it lies."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

import record
from store.cluster.shared_log import SharedLogUnavailable, SlotRemoved
from store.cluster.slot import HEADER_SIZE
from store.cluster.snapshots import KEPT, Contents, Manifest
from tests.store.cluster.simulation.loop import ClusterLoop

TIMEOUT_S = 0.5  # of a request
LATEST_S = 6.0  # that a write may land after it was sent
LIES = ("lost tail", "lost slot", "changed bytes", "exchanged slots")
LIES_ABOUT_OBJECTS = ("lost object", "changed object")


class Engine:
    """The slots, and what became of each."""

    def __init__(self, loop: ClusterLoop, rng: Random, counts: Counter[str]) -> None:
        self.loop = loop
        self.rng = rng
        self.counts = counts
        self.as_stream = rng.random() < 0.5  # it takes a slot behind its last one only, as JetStream does
        self.trouble = 0.0  # probability that something goes wrong with a request
        self.away = False
        self.slots: dict[int, bytes] = {}
        self.decided: dict[int, bytes] = {}  # what each slot held first, whatever has become of it
        self.written: set[bytes] = set()  # that members wanted to have in a slot
        self.begin = 1
        self.objects: dict[str, bytes] = {}
        self.wrong: list[str] = []  # about snapshots, at any time
        self.lied = ""
        self._landed_at: dict[int, float] = {}

    def land(self, slot: int, data: bytes) -> bool:
        """A write arrives."""
        if slot < self.begin or slot in self.slots or (self.as_stream and slot != self.last + 1):
            return False
        self.slots[slot] = data
        self.decided.setdefault(slot, data)
        self._landed_at[slot] = self.loop.time()
        return True

    @property
    def last(self) -> int:
        return max(self.slots, default=self.begin - 1)

    def look(self, slot: int) -> bytes | None:
        """A read arrives, perhaps at a server that is a little behind."""
        if slot < self.begin:
            raise SlotRemoved(slot, self.begin)
        lag = self.rng.random() * 0.3 if self.rng.random() < self.trouble else 0.0
        if slot in self.slots and self.loop.time() - self._landed_at[slot] >= lag:
            return self.slots[slot]
        return None

    def find_end(self) -> int:
        lag = self.rng.random() * 0.3 if self.rng.random() < self.trouble else 0.0
        now = self.loop.time()
        last = self.last
        while last >= self.begin and last in self.slots and now - self._landed_at[last] < lag:
            last -= 1
        return last + 1

    def trim(self, before: int) -> None:
        if before not in self.slots:
            return
        for slot in range(self.begin, before):
            self.slots.pop(slot, None)
        self.begin = max(self.begin, before)

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def put_new(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = data
        return True

    def delete(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.objects.pop(name, None)

    def check_snapshots(self) -> None:
        """The newest two have all their parts, and what slots are gone is in one of them."""
        if self.lied:
            return
        covered = 0
        for name in sorted(each for each in self.objects if each.startswith("manifests/"))[-KEPT:]:
            manifest = msgspec.json.decode(self.objects[name][32:], type=Manifest)
            named = [part.name for part in manifest.contents]
            if self.objects.keys() >= set(named):
                contents = msgspec.msgpack.decode(b"".join(map(self.objects.__getitem__, named)), type=Contents)
                named += [part.name for part in contents.parts()]
            lost = [each for each in named if each not in self.objects]
            if lost:
                self.wrong.append(f"{name} lacks {len(lost)} parts")
            covered = max(covered, manifest.slot)
        if self.begin > covered + 1:
            self.wrong.append(f"the slots begin with {self.begin}, and a snapshot ends at {covered}")

    def lie(self) -> None:
        """Lose or change something that was decided."""
        slots = sorted(self.slots)
        if len(slots) < 4:
            return
        self.lied = self.rng.choice((*LIES, *LIES_ABOUT_OBJECTS) if self.objects else LIES)
        if self.lied in LIES_ABOUT_OBJECTS:
            # In the order of writing: the digests in names of parts of views differ from run to run.
            name = self.rng.choice(list(self.objects))
            data = self.objects.pop(name)
            if self.lied == "changed object":
                self.objects[name] = data[:-1] + bytes([data[-1] ^ 1]) if data else b"?"
            return
        victim = slots[-self.rng.randint(1, min(len(slots), 8))]
        if self.lied == "lost tail":
            for slot in slots[slots.index(victim) :]:
                del self.slots[slot]
        elif self.lied == "lost slot":
            del self.slots[victim]
        elif self.lied == "changed bytes":
            self.slots[victim] = self._changed(self.slots[victim])
        elif victim - 1 in self.slots:
            self.slots[victim], self.slots[victim - 1] = self.slots[victim - 1], self.slots[victim]

    def _changed(self, data: bytes) -> bytes:
        kind = self.rng.randrange(3)
        place = self.rng.randrange(len(data))
        if kind == 0:
            return data[:place]
        if kind == 1:
            return data[:place] + bytes([data[place] ^ 1 << self.rng.randrange(8)]) + data[place + 1 :]
        # A slot that is right in itself, and was written by nobody.
        fields = bytearray(data[8:HEADER_SIZE])
        fields[24] ^= 1  # the checksum of the slot before it
        rest = bytes(fields) + data[HEADER_SIZE:]
        return data[:4] + record.crc32c(rest).to_bytes(4, "little") + rest


class Port:
    """The engine as one node reaches it. `on_request` is called when something is sent, and when it has landed."""

    def __init__(self, engine: Engine, on_request: Callable[[], None]) -> None:
        self.max_slot_bytes = 1 << 16
        self.max_object_bytes = 1 << 20
        self.cut = False  # no request arrives
        self.refuses_writes = False
        self._engine = engine
        self._on_request = on_request

    async def create(self, slot: int, data: bytes) -> bool:
        engine, rng = self._engine, self._engine.rng
        engine.written.add(data)
        trouble = rng.choice(("lost request", "lost answer", "late", "repeated", "retried")) if self._is_odd() else ""

        def arrive() -> bool:
            if slot < engine.begin:
                raise SlotRemoved(slot, engine.begin)
            landed = engine.land(slot, data)
            if trouble == "retried":  # the answer to the first attempt was lost on the way
                return engine.land(slot, data)
            if trouble == "repeated":
                self._later(rng.random() * LATEST_S, engine.land, slot, data)
            return landed

        if trouble:
            engine.counts[f"creates with {trouble}"] += 1
        if trouble == "late" or (self._is_away() and rng.random() < 0.3):
            self._later(rng.random() * LATEST_S, engine.land, slot, data)
        return await self._ask(
            arrive,
            arrives=not self.refuses_writes and trouble not in {"lost request", "late"},
            answers=trouble != "lost answer",
        )

    async def read(self, slot: int) -> bytes | None:
        return await self._ask(lambda: self._engine.look(slot), answers=not self._is_odd())

    async def end(self) -> int:
        return await self._ask(self._engine.find_end, answers=not self._is_odd())

    async def begin(self) -> int:
        return await self._ask(lambda: self._engine.begin, answers=not self._is_odd())

    async def trim(self, before: int) -> None:
        await self._change("trims", self._engine.trim, before)

    async def put_object(self, name: str, data: bytes) -> None:
        await self._change("puts", self._engine.put, name, data)

    async def create_object(self, name: str, data: bytes) -> bool:
        return await self._change("snapshots", self._engine.put_new, name, data)

    async def get_object(self, name: str) -> bytes | None:
        return await self._ask(lambda: self._engine.objects.get(name), answers=not self._is_odd())

    async def list_objects(self, folder: str) -> list[str]:
        def find() -> list[str]:
            return sorted(name for name in self._engine.objects if name.startswith(f"{folder}/"))

        return await self._ask(find, answers=not self._is_odd())

    async def delete_objects(self, names: Sequence[str]) -> None:
        await self._change("deletions", self._engine.delete, tuple(names))

    async def _change(self, what: str, work: Callable[..., Any], *args: Any) -> Any:
        """Change something that is no slot: perhaps late or twice, and perhaps without an answer."""
        engine, rng = self._engine, self._engine.rng
        trouble = rng.choice(("lost request", "lost answer", "late", "repeated")) if self._is_odd() else ""
        engine.counts[what] += 1

        def arrive() -> Any:
            result = work(*args)
            engine.check_snapshots()
            return result

        if trouble in {"late", "repeated"}:
            self._later(rng.random() * LATEST_S, arrive)
        return await self._ask(
            arrive, arrives=trouble not in {"lost request", "late"}, answers=trouble != "lost answer"
        )

    async def close(self) -> None:
        pass

    def _is_odd(self) -> bool:
        return self._engine.rng.random() < self._engine.trouble

    def _is_away(self) -> bool:
        return self.cut or self._engine.away

    def _delay(self) -> float:
        rng = self._engine.rng
        return rng.random() * (TIMEOUT_S * 0.8 if rng.random() < self._engine.trouble / 2 else 0.006)

    def _later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        self._engine.loop.call_later(delay, callback, *args, context=self._engine.loop.outside)

    async def _ask(self, work: Callable[[], Any], arrives: bool = True, answers: bool = True) -> Any:
        """Have the work done at the engine a little later, and come back with the answer a little later still."""
        answer: asyncio.Future[Any] = self._engine.loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)

        def arrive() -> None:
            if self._is_away():
                return
            try:
                result, error = work(), None
            except SlotRemoved as removed:
                result, error = None, removed
            self._on_request()
            if answers:
                self._later(self._delay(), settle, result, error)

        self._on_request()
        if arrives:
            self._later(self._delay(), arrive)
        self._later(TIMEOUT_S, settle, None, SharedLogUnavailable("no answer"))
        return await answer
