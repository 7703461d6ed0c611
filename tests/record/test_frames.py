"""The frame functions: what goes in comes out, damage is seen, and both implementations are the same."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from record import _plain as plain
from record import layout

frames = (
    pytest.importorskip("record._frames", reason="no compiled extension: the plain functions stand in")
    if (record.COMPILED)
    else plain
)
BOTH = pytest.mark.parametrize("impl", [frames, plain], ids=["compiled", "plain"])

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
u64 = st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)
fields = st.tuples(
    st.integers(1, 10), u16, u16, st.binary(max_size=40), st.binary(max_size=20), st.binary(max_size=30), st.binary()
)
batches = st.lists(fields, min_size=1, max_size=6)


def sealed(rows: list[tuple[int, int, int, bytes, bytes, bytes, bytes]], position: int = 1000) -> bytes:
    return plain.seal([plain.frame(*row) for row in rows], position, 7, 1_700_000_000_000, position - 10)


@given(batches, st.integers(10, 2**63), u32, u64)
def test_sealed_frames_decode_to_what_went_in(rows, position, epoch, time):
    for impl in (frames, plain):
        data = impl.seal([impl.frame(*row) for row in rows], position, epoch, time, position - 10)
        starts = impl.split(data)
        assert [impl.decode(data, start) for start in starts] == rows
        assert [impl.position_of(data, start) - start for start in starts] == [position] * len(rows)
        assert {impl.durable_of(data, start) for start in starts} == {position - 10}
        assert {impl.store_time_of(data, start) for start in starts} == {time}
        assert impl.verify(data, position) == (starts, len(data))
        assert sum(impl.length_of(data, start) for start in starts) == len(data)


@given(batches)
def test_compiled_equals_plain(rows):
    unsealed = [frames.frame(*row) for row in rows]
    assert unsealed == [plain.frame(*row) for row in rows]
    data = sealed(rows)
    assert frames.seal(unsealed, 1000, 7, 1_700_000_000_000, 990) == data
    assert frames.scan(data) == plain.scan(data)
    assert frames.columns(data) == plain.columns(data)
    wire = b"".join(unsealed)
    assert frames.check_unsealed(wire, False) == plain.check_unsealed(wire, False) == unsealed


@given(batches, st.data())
def test_a_flipped_bit_is_seen(rows, data):
    good = sealed(rows)
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    starts = plain.split(good)
    hit = max(start for start in starts if start <= bit // 8)
    for impl in (frames, plain):
        assert impl.verify(bytes(bad), 1000) == ([start for start in starts if start < hit], hit)


@given(batches, st.data())
def test_truncation_and_misplacement_are_seen(rows, data):
    good = sealed(rows)
    cut = data.draw(st.integers(0, len(good) - 1))
    whole = max(start for start in [*plain.split(good), 0] if start <= cut)
    for impl in (frames, plain):
        assert impl.verify(good[:cut], 1000)[1] == whole
        assert impl.verify(good, 1001) == ([], 0)
        assert impl.verify(good + b"\0" * 64, 1000)[1] == len(good)


@given(st.binary(max_size=200), st.integers(-10, 210))
def test_hostile_bytes_are_errors_and_never_read_outside(data, start):
    header = bytearray(layout.HEADER_SIZE)
    struct.pack_into("<IIHBB", header, 0, 0, len(data) + 48, layout.MAGIC, layout.VERSION, 1)
    header[32:48] = (data + bytes(16))[:16]
    for blob in (data, bytes(header) + data):
        for name in ("split", "check_unsealed", "scan", "columns"):
            assert outcome(getattr(frames, name), blob) == outcome(getattr(plain, name), blob)
        for name in ("decode", "length_of", "position_of", "store_time_of", "durable_of", "verify"):
            assert outcome(getattr(frames, name), blob, max(start, 0)) == outcome(
                getattr(plain, name), blob, max(start, 0)
            )
        assert outcome(frames.decode, blob, -1) is ValueError


def outcome(call, *args):
    try:
        return call(*args)
    except ValueError:
        return ValueError


@BOTH
def test_fields_that_do_not_fit_are_refused(impl):
    ok = {"kind": 1, "flags": 0, "packet_id": 0, "topic": b"t", "publisher": b"", "properties": b"", "payload": b""}
    for change in (
        {"kind": 256},
        {"flags": 65536},
        {"packet_id": -1},
        {"topic": bytes(65536)},
        {"publisher": bytes(65536)},
    ):
        with pytest.raises(ValueError, match=r"range|large"):
            impl.frame(*{**ok, **change}.values())


@BOTH
def test_seal_takes_whole_frames_only(impl):
    one = impl.frame(1, 0, 0, b"t", b"", b"", b"x")
    for bad in (b"", one + one, one[:-1], b"x" * 60):
        with pytest.raises(ValueError, match="frame"):
            impl.seal([one, bad], 0, 1, 1, 0)
    for kind in (0, max(layout.Kind) + 1, 255):
        with pytest.raises(ValueError, match="kind"):
            impl.seal([impl.frame(kind, 0, 0, b"t", b"", b"", b"x")], 0, 1, 1, 0)
    assert impl.seal([impl.frame(max(layout.Kind), 0, 0, b"t", b"", b"", b"x")], 0, 1, 1, 0)
    with pytest.raises(ValueError, match="durable"):
        impl.seal([one], 0, 1, 1, 1)
    assert impl.seal([], 0, 1, 1, 0) == b""


@BOTH
def test_only_messages_come_over_the_wire(impl):
    control = impl.frame(layout.Kind.SESSION_OPENED, 0, 0, b"c", b"", b"", b"{}")
    with pytest.raises(ValueError, match="message"):
        impl.check_unsealed(control)
    assert impl.check_unsealed(control, False) == [control]
    assert impl.check_unsealed(b"") == []


@given(st.lists(st.tuples(u64, u32, u64, u32), max_size=20))
def test_references_round_trip(rows):
    cols = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    packed = frames.pack_refs(*cols)
    assert packed == plain.pack_refs(*cols)
    assert len(packed) == 24 * len(rows)
    assert frames.unpack_refs(packed) == plain.unpack_refs(packed) == tuple(cols)
    if rows:
        with pytest.raises(ValueError, match="whole"):
            frames.unpack_refs(packed[:-1])


def test_columns_are_arrow_buffers():
    data = sealed([(1, 1, 0, b"a/b", b"me", b"", b"hello"), (1, 2, 0, b"c", b"", b"pp", b"")])
    rows, positions, times, flags, *buffers = frames.columns(data)
    assert rows == 2
    assert struct.unpack("<2q", positions) == (1000, 1000 + record.length_of(data, 0))
    assert struct.unpack("<2q", times) == (1_700_000_000_000,) * 2
    assert list(flags) == [1, 2]
    assert buffers[1::2] == [b"a/bc", b"me", b"pp", b"hello"]
    assert [struct.unpack("<3i", b) for b in buffers[::2]] == [(0, 3, 4), (0, 2, 2), (0, 0, 2), (0, 5, 5)]


@given(st.binary(max_size=100))
def test_crc_is_castagnoli_in_every_implementation(data):
    assert frames.crc32c(data) == frames.crc32c_table(data) == plain.crc32c(data)


def test_crc_of_the_rfc_3720_example():
    assert record.crc32c(b"123456789") == 0xE3069283
    assert record.crc32c(bytes(100_000)) == plain.crc32c(bytes(100_000))
