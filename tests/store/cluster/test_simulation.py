"""Random histories of a cluster; the nightly run is `make simulate-cluster SEEDS=10000`. What the protocol rests on is
taken out in turn, and the histories show it."""

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from store.cluster import leadership, member, snapshot_writer, snapshots, upkeep
from store.cluster.history import History
from store.cluster.leadership import Leadership
from store.cluster.member import Member
from store.cluster.shared_log import SharedLog, SharedLogUnavailable
from store.cluster.slot import Slot, build_slot, parse_slot
from store.cluster.upkeep import Upkeep
from tests.store.cluster.simulation.engine import Port
from tests.store.cluster.simulation.simulator import simulate, simulate_stores
from tests.store.simulation.simulator import Violation

ROOT = Path(__file__).parent.parent.parent.parent
SEEDS = 400  # in which a fault is found


@pytest.mark.slow
def test_no_history_violates_the_promises():
    command = [sys.executable, "-m", "tests.store.cluster.simulation", "--seeds", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.endswith("0 violations\n")


@pytest.mark.slow
def test_no_history_of_real_stores_violates_the_promises():
    command = [sys.executable, "-m", "tests.store.cluster.simulation", "stores", "--seeds", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.endswith("0 violations\n")


def test_the_same_seed_is_the_same_history():
    assert [simulate(seed) for seed in range(1, 9)] == [simulate(seed) for seed in range(1, 9)]
    assert simulate_stores(6) == simulate_stores(6)


def accept_anything(patch: pytest.MonkeyPatch) -> None:
    """Slots that do not follow are folded."""

    def after(self: History, slot: Slot) -> History:
        changes: dict[str, Any] = {
            "slot": slot.number,
            "checksum": slot.checksum,
            "epoch": slot.epoch,
            "end": slot.position + len(slot.batch),
        }
        name = {"Founded": "founded", "LeaderClaim": "leader"}.get(type(slot.content).__name__)
        if name:
            changes[name] = slot.content
        return msgspec.structs.replace(self, **changes)

    patch.setattr(History, "after", after)


def forget_the_slot_before(patch: pytest.MonkeyPatch) -> None:
    """Slots do not name the one before them."""
    patch.setattr(
        "store.cluster.history.build_slot",
        lambda number, epoch, position, _, *what: build_slot(number, epoch, position, 0, *what),
    )
    after = History.after

    def after_any(self: History, slot: Slot) -> History:
        return msgspec.structs.replace(after(msgspec.structs.replace(self, checksum=slot.previous), slot))

    patch.setattr(History, "after", after_any)


def go_on_when_deposed(patch: pytest.MonkeyPatch) -> None:
    """A leader that finds the slot of another one takes the next."""

    async def write(self: Leadership, slot: Slot) -> History:
        while True:
            found = await leadership.write_slot(self._log, slot, self._reached)
            history = self.history.after(parse_slot(slot.number, found))
            self.history, self.decided_at = history, self._loop.time()
            if found == slot.data:
                return history
            slot = build_slot(slot.number + 1, slot.epoch, history.end, history.checksum, slot.content, slot.batch)

    patch.setattr(Leadership, "_write", write)


def trust_lost_answers(patch: pytest.MonkeyPatch) -> None:
    """A write without an answer counts as done."""

    create = Port.create

    async def create_or_hope(self: Port, slot: int, data: bytes) -> bool:
        try:
            return await create(self, slot, data)
        except SharedLogUnavailable:
            return True

    patch.setattr(Port, "create", create_or_hope)


def answer_early(patch: pytest.MonkeyPatch) -> None:
    """A batch counts as decided before its slot is."""

    async def write(self: Leadership, slot: Slot) -> History:
        self.history, self.decided_at = self.history.after(slot), self._loop.time()
        self._writing = asyncio.ensure_future(self._settle(slot))
        self._writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self.history

    patch.setattr(Leadership, "_write", write)


def claim_without_reading(patch: pytest.MonkeyPatch) -> None:
    """A candidate claims at the end of the shared log, and has not read up to there."""
    claim = Member._claim

    async def claim_ahead(self: Member) -> Leadership | None:
        end = await self._log.end()
        newest = await self._log.read(end - 1) if end > 1 else None
        if newest is not None:
            checksum = parse_slot(end - 1, newest).checksum
            self._replica.history = msgspec.structs.replace(self._replica.history, slot=end - 1, checksum=checksum)
        return await claim(self)

    patch.setattr(Member, "_claim", claim_ahead)
    read = Member._read

    async def read_late(self: Member, count: int) -> tuple[list[Slot], bool]:
        slots, at_end = await read(self, count)
        return slots[:-1], at_end

    patch.setattr(Member, "_read", read_late)


def claim_for_any_site(patch: pytest.MonkeyPatch) -> None:
    """Nodes of a site that stands by claim when nobody leads."""
    patch.setattr(member, "stands_by", lambda _history, _site: False)


def count_every_claim_as_won(patch: pytest.MonkeyPatch) -> None:
    """A claim is taken for won without a look at who won."""

    async def write_slot(log: SharedLog, slot: Slot, reached: Callable[[object], None]) -> bytes:
        await leadership.write_slot(log, slot, reached)
        return slot.data

    patch.setattr(member, "write_slot", write_slot)


def be_sure_for_long(patch: pytest.MonkeyPatch) -> None:
    """A leader is sure that it leads for longer than others wait for it."""
    patch.setattr(member, "_SURE", 2.0)


MUTATIONS = (
    (accept_anything, True),
    (forget_the_slot_before, True),
    (go_on_when_deposed, False),
    (trust_lost_answers, False),
    (answer_early, False),
    (claim_without_reading, False),
    (count_every_claim_as_won, False),
    (claim_for_any_site, False),
    (be_sure_for_long, False),
)


@pytest.mark.parametrize(("mutate", "lies"), MUTATIONS, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_taken_out_is_missed(
    mutate: Callable[[pytest.MonkeyPatch], None], lies: bool, monkeypatch: pytest.MonkeyPatch
):
    mutate(monkeypatch)
    with pytest.raises(Violation):
        deque((simulate(seed, lies) for seed in range(1, SEEDS)), maxlen=0)


def trim_without_snapshots(patch: pytest.MonkeyPatch) -> None:
    """The leader removes all slots that it has folded."""

    async def trim(self: Upkeep, _: object) -> None:
        await self._log.trim(self._replica.history.slot)

    patch.setattr(Upkeep, "_trim", trim)


def write_the_manifest_first(patch: pytest.MonkeyPatch) -> None:
    """Parts are written some time after they are named."""

    async def put_later(self: Port, name: str, data: bytes) -> None:
        self._later(self._engine.rng.random(), self._engine.put, name, data)

    patch.setattr(Port, "put_object", put_later)


def remove_parts_under_way(patch: pytest.MonkeyPatch) -> None:
    """What the newest snapshots do not name is removed, whoever writes it, and others remove before a manifest."""
    patch.setattr(snapshots, "_up_to", lambda parts, _: set(parts))
    create = snapshot_writer.create_manifest

    async def create_late(log: SharedLog, number: int, manifest: snapshots.Manifest) -> bool:
        await snapshots.remove_old(log)
        return await create(log, number, manifest)

    patch.setattr(snapshot_writer, "create_manifest", create_late)


def remove_parts_of_the_older_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A removal looks at the newest snapshot only, and leaves the manifest of the one before."""
    read_contents = snapshots.read_contents

    async def remove_old(log: SharedLog) -> None:
        number = (await snapshots.newest_numbers(log))[0]
        manifest = await snapshots.read_manifest(log, number)
        parts = (*manifest.contents, *(await read_contents(log, manifest)).parts())
        await log.delete_objects(sorted(await snapshots.written_parts(log) - {part.name for part in parts}))

    patch.setattr(upkeep, "remove_old", remove_old)


@pytest.mark.parametrize(
    "mutate",
    [
        go_on_when_deposed,
        answer_early,
        trim_without_snapshots,
        write_the_manifest_first,
        remove_parts_under_way,
        remove_parts_of_the_older_snapshot,
    ],
)
def test_what_is_taken_out_is_missed_by_real_stores(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    mutate(monkeypatch)
    with pytest.raises(Violation):
        deque((simulate_stores(seed, False) for seed in range(20, 60)), maxlen=0)
