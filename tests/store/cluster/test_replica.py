"""Which slots a checkpoint of the views has."""

from msgspec.structs import replace

from store.cluster.history import History
from store.cluster.replica import DecidedSlots


def test_a_checkpoint_has_the_slots_whose_records_are_folded():
    claimed = History(slot=2, epoch=1)
    slots = DecidedSlots(History())
    slots.add(replace(claimed, slot=1))
    slots.add(claimed)
    with_records = replace(claimed, slot=3, end=100)
    slots.add(with_records)
    assert slots.at(0) == slots.at(99) == claimed
    idle = replace(with_records, slot=4)
    slots.add(idle)
    assert slots.at(0) == claimed, "the records before it are not folded"
    last = replace(idle, slot=5, end=200)
    slots.add(last)
    assert slots.at(150) == idle
    assert slots.at(200) == slots.at(200) == last
