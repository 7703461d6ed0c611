"""What the slots so far have decided: a pure fold of the shared log.

The writer of a slot has read all slots before it, and a slot is decided once. So every slot that is decided follows
those before it. One that does not follow proves that the engine lost or changed something, and is never folded.
"""

from typing import Final

import msgspec

import record
from store.cluster.shared_log import SharedLogDamaged
from store.cluster.slot import Content, Founded, HandedOver, LeaderClaim, Slot, SlotKind, build_slot


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The shared log up to and with one of its slots."""

    slot: int = 0  # the newest; 0 before the log is founded
    checksum: int = 0  # of that slot
    epoch: int = 0  # of the newest claim; 0 before the first
    end: int = 0  # of the log: a position
    founded: Founded | None = None
    leader: LeaderClaim | None = None  # who claimed last
    handed_to: str = ""  # the node that the leader wants to lead next, when it leads no more

    def next(self, content: Content = None, batch: bytes = b"", position: int = -1, epoch: int = -1) -> Slot:
        """The slot that says this after the newest. Position and epoch are those of the log, unless they are given."""
        return build_slot(
            self.slot + 1,
            self.epoch if epoch < 0 else epoch,
            self.end if position < 0 else position,
            self.checksum,
            content,
            batch,
        )

    def after(self, slot: Slot) -> "History":
        """The history with the next slot. Raises `SharedLogDamaged` if the slot does not follow."""
        if slot.number != self.slot + 1 or slot.previous != self.checksum:
            raise self._damaged(slot, "does not follow the slot before it")
        content = slot.content
        founded, epoch, leader, handed_to = self.founded, self.epoch, self.leader, self.handed_to
        if (slot.kind == SlotKind.FOUNDED) != (slot.number == 1):
            raise self._damaged(slot, "founds a log in a log" if self.slot else "does not found the log")
        if slot.kind in {SlotKind.FOUNDED, SlotKind.CLAIMED}:
            if slot.kind == SlotKind.CLAIMED and slot.epoch <= epoch:
                raise self._damaged(slot, f"claims epoch {slot.epoch} after epoch {epoch}")
            epoch, handed_to = slot.epoch, ""
        elif leader is None or handed_to or slot.epoch != epoch:
            raise self._damaged(slot, f"is of epoch {slot.epoch}, which does not lead")
        if not self._continues(slot):
            raise self._damaged(slot, f"is for position {slot.position}, while the log ends at {self.end}")
        if isinstance(content, Founded):
            founded = content
        elif isinstance(content, LeaderClaim):
            leader = content
        elif isinstance(content, HandedOver):
            handed_to = content.to
        return History(
            slot=slot.number,
            checksum=slot.checksum,
            epoch=epoch,
            end=slot.position + len(slot.batch),
            founded=founded,
            leader=leader,
            handed_to=handed_to,
        )

    def pack(self) -> bytes:
        """As bytes, for a checkpoint."""
        return _encode(self)

    def _continues(self, slot: Slot) -> bool:
        """Whether the position is the log's end. A batch may begin with the next segment instead, and its first frame
        says then where the log ended (`store.log.writer`). A log may be founded with records, which end anywhere."""
        if not slot.batch:
            return slot.position == self.end or slot.kind == SlotKind.FOUNDED
        try:
            if record.position_of(slot.batch, 0) != slot.position:
                return False
            if slot.position == self.end:
                return True
            size = self.founded.segment_size if self.founded is not None else 1
            return slot.position == -(-self.end // size) * size and record.durable_of(slot.batch, 0) == self.end
        except ValueError:  # no frame
            return False

    def _damaged(self, slot: Slot, why: str) -> SharedLogDamaged:
        return SharedLogDamaged(f"slot {slot.number} of the shared log {why}: what was decided was lost or changed")


_encode: Final = msgspec.msgpack.Encoder().encode
unpack_history: Final = msgspec.msgpack.Decoder(History).decode
