"""Slots as bytes: what is written is read, and anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from store.cluster.shared_log import SharedLogDamaged
from store.cluster.slot import HEADER_SIZE, Founded, HandedOver, LeaderClaim, Slot, SlotKind, build_slot, parse_slot

names = st.text(min_size=1, max_size=8)
counts = st.integers(1, 1 << 31)
contents = st.one_of(
    st.none(),
    st.builds(Founded, names, counts, counts, counts),
    st.builds(LeaderClaim, names, st.text(max_size=8), names),
    st.builds(HandedOver, names),
)
u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)


@st.composite
def slots(draw: st.DrawFn) -> Slot:
    content = draw(contents)
    batch = b"" if content is not None else draw(st.binary(max_size=40))
    return build_slot(draw(u64), draw(u32), draw(u64), draw(u32), content, batch)


@given(slots())
def test_a_slot_is_read_as_it_was_written(slot: Slot):
    assert parse_slot(slot.number, slot.data) == slot


@given(st.binary(max_size=200))
def test_bytes_that_are_no_slot_are_damage(data: bytes):
    with pytest.raises(SharedLogDamaged):
        parse_slot(1, data)


@given(slots(), st.data())
def test_a_changed_or_shortened_slot_is_damage(slot: Slot, data: st.DataObject):
    place = data.draw(st.integers(0, len(slot.data) - 1))
    changed = bytearray(slot.data)
    changed[place] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(changed), slot.data[:place], slot.data + b"\0"):
        with pytest.raises(SharedLogDamaged):
            parse_slot(slot.number, wrong)


@given(st.binary(max_size=32), st.binary(max_size=40))
def test_any_bytes_with_a_right_checksum_are_a_slot_or_damage(fields: bytes, body: bytes):
    checked = fields.ljust(HEADER_SIZE - 8, b"\0") + body
    try:
        slot = parse_slot(0, b"SLOT" + record.crc32c(checked).to_bytes(4, "little") + checked)
    except SharedLogDamaged:
        return
    assert parse_slot(slot.number, slot.data) == slot


@given(slots(), st.integers(8, HEADER_SIZE - 1), st.integers(0, 255))
def test_any_header_with_a_right_checksum_is_a_slot_or_damage(slot: Slot, place: int, value: int):
    changed = bytearray(slot.data)
    changed[place] = value
    changed[4:8] = record.crc32c(bytes(changed[8:])).to_bytes(4, "little")
    try:
        parsed = parse_slot(int.from_bytes(changed[16:24], "little"), bytes(changed))
    except SharedLogDamaged:
        return
    rebuilt = build_slot(parsed.number, parsed.epoch, parsed.position, parsed.previous, parsed.content, parsed.batch)
    assert rebuilt.kind == parsed.kind
    assert parsed.content is not None or rebuilt.data == bytes(changed)


def test_a_slot_at_the_place_of_another_is_damage():
    slot = build_slot(7, 1, 0, 0, None, b"")
    assert slot.kind == SlotKind.IDLE
    with pytest.raises(SharedLogDamaged, match="has slot 7 as slot 8"):
        parse_slot(8, slot.data)


def test_a_version_of_later_is_named():
    data = bytearray(build_slot(1, 0, 0, 0, None, b"").data)
    data[8] = 2
    data[4:8] = record.crc32c(bytes(data[8:])).to_bytes(4, "little")
    with pytest.raises(SharedLogDamaged, match="version 2"):
        parse_slot(1, bytes(data))
