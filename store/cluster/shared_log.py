"""A log on a service that replicates it: numbered slots, each decided once.

Slots are numbered from 1. A slot is decided when the service has accepted bytes for it, which never change from then
on. The log is dense: slot n is decided after slot n - 1. Old slots may be removed; their numbers are never used again.

Beside the slots the service keeps objects: bytes with a name, of which snapshots are made (`store.cluster.snapshots`).
"""

from collections.abc import Sequence
from typing import Protocol

from store.errors import StoreError


class SharedLogUnavailable(StoreError):
    """The service did not answer, or not with an outcome: try again. The outcome of a `create` is unknown."""


class SharedLogDamaged(StoreError):
    """The service has lost or changed what was decided: a person has to look."""


class SharedLogMisconfigured(StoreError):
    """The service cannot hold a log as it is set up or addressed. The text says what to change."""


class SlotRemoved(StoreError):
    """The slot was decided, and has been removed."""

    def __init__(self, slot: int, begin: int) -> None:
        super().__init__(f"slot {slot} was removed: the shared log begins with slot {begin}")
        self.slot = slot
        self.begin = begin


class SlotTooLarge(StoreError):
    """The bytes are more than a slot may have. Nothing was written."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size} bytes are more than the shared log takes in one slot, which is {limit}")


def take_number(options: dict[str, str | int | float | bool], name: str, default: float) -> float:
    """Remove a number from the options of a service, and return it. Raises `SharedLogMisconfigured`."""
    value = options.pop(name, default)
    try:
        return float(value)
    except ValueError:
        raise SharedLogMisconfigured(f"{name} must be a number, not {value!r}") from None


class SharedLog(Protocol):
    """The slots of one log, and its objects. All methods are for one event loop, and may be called at the same time.

    A slot has at most `max_slot_bytes`, and an object `max_object_bytes`. An object's name is letters, digits and `-`,
    in parts that `/` separates.

    Each call makes a bounded number of requests, whose time is bounded. It raises `SharedLogUnavailable` as soon as one
    of them has no answer by then, and `StoreClosed` after `close`. A call that is cancelled may still have its effect.
    """

    max_slot_bytes: int
    max_object_bytes: int

    async def create(self, slot: int, data: bytes) -> bool:
        """Decide `slot`, if slot - 1 is decided and this one is not.

        True: the slot holds `data`, written by this call. False: it is decided already, perhaps by an earlier attempt
        of the caller whose answer was lost: `read` tells. Raises `SharedLogUnavailable` if the outcome is unknown: the
        caller reads the slot, and repeats the same bytes while it is not decided. An earlier attempt may take effect
        at any later time, also after a `read` that did not find it, but only while the slot is not decided. Raises
        `SlotTooLarge`, `SlotRemoved` and `SharedLogDamaged`.
        """

    async def read(self, slot: int) -> bytes | None:
        """The bytes of a slot. None: it was not decided a moment ago, as far as the server knew that answered.

        Only `create` finds out that a slot is still not decided. So None means "not yet" to somebody who follows the
        log, and "repeat the bytes" to somebody whose `create` had no answer. Raises `SlotRemoved`, and
        `SharedLogDamaged` if the slot is lost although later ones are there.
        """

    async def end(self) -> int:
        """The first slot that is not decided, at about now. Slots may have been added when the caller has the
        answer."""

    async def begin(self) -> int:
        """The first slot that does not count as removed."""

    async def trim(self, before: int) -> None:
        """Remove slots before this one, by and by: a call does a bounded part of the work, and later calls the rest.

        Does nothing if this slot is not decided, so the newest slot stays. Slots count as removed at once, although for
        some minutes they can still be read.
        """

    async def put_object(self, name: str, data: bytes) -> None:
        """Write an object, in place of one that is there. If the call fails, it may be written at any later time."""

    async def create_object(self, name: str, data: bytes) -> bool:
        """Write an object if there is none with this name. False: there is one, perhaps by an earlier attempt of the
        caller whose answer was lost."""

    async def get_object(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""

    async def list_objects(self, folder: str) -> list[str]:
        """The sorted names of all objects that begin with `folder` and `/`."""

    async def delete_objects(self, names: Sequence[str]) -> None:
        """Delete objects. Not an error if they are gone."""

    async def close(self) -> None: ...
