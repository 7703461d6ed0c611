"""The frame functions: what goes in comes out, damage is seen, and both implementations are the same."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record
from cloud_sdk.properties import decode as decode_properties
from record import _plain as plain
from record import layout
from record.layout import FLAG_DELAYED, FLAG_HALF, FLAG_HELD, FLAG_REVIVED

try:
    from record import _frames as frames
except ImportError:  # it is not compiled
    frames = plain
BOTH = pytest.mark.parametrize("impl", [frames, plain], ids=["compiled", "plain"])

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
u64 = st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)

TRAILED = FLAG_DELAYED | FLAG_REVIVED
Row = tuple[int, int, int, bytes, bytes, bytes, bytes, int | None]


def row(kind: int, flags: int, number: int, *others: object) -> Row:
    if flags & FLAG_REVIVED:
        flags &= ~FLAG_HELD
    return kind, flags, *others, number if flags & TRAILED else None


def text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


short = st.one_of(
    st.sampled_from(
        [b"", b"key", b"key", b"key", b"ordering_key", b"ordering_key", b"ke", b"keys", b"Key", bytes(255), bytes(256)]
    ),
    st.integers(0, 30).map(lambda number: b"%d" % number),
)
message_properties = st.one_of(
    st.sampled_from([b"\x01\x00", b"\x01\x01", b"\x02\x00\x00\x00\x3c"]),
    st.builds(lambda which, data: which + text(data), st.sampled_from([b"\x03", b"\x08", b"\x09"]), short),
    st.builds(lambda name, value: b"\x26" + text(name) + text(value), short, short),
)
blocks = st.lists(message_properties, max_size=20).map(b"".join)


@st.composite
def broken_blocks(draw: st.DrawFn) -> bytes:
    """Nearly a block: cut, a byte changed, or something behind it that is no property."""
    block = draw(blocks)
    cut = draw(st.integers(0, len(block)))
    return block[:cut] + draw(st.binary(max_size=3)) + block[cut + draw(st.integers(0, 2)) :]


properties = st.one_of(st.binary(max_size=30), blocks, broken_blocks())
fields = st.builds(
    row,
    st.integers(1, max(layout.Kind)),
    u16,
    u64,
    u16,
    st.binary(max_size=40),
    st.binary(max_size=20),
    properties,
    st.binary(),
)
batches = st.lists(fields, min_size=1, max_size=6)


def sealed(rows: list[Row], position: int = 1000) -> bytes:
    return plain.seal([plain.frame(*row) for row in rows], position, 7, 1_700_000_000_000, position - 10)


@given(batches, st.integers(10, 2**63), u32, u64)
def test_sealed_frames_decode_to_what_went_in(rows, position, epoch, time):
    for impl in (frames, plain):
        data = impl.seal([impl.frame(*row) for row in rows], position, epoch, time, position - 10)
        starts = impl.split(data)
        assert [impl.decode(data, start) for start in starts] == [row[:-1] for row in rows]
        assert [outcome(impl.trailer_of, data, start) for start in starts] == [
            ValueError if row[-1] is None else row[-1] for row in rows
        ]
        assert [impl.position_of(data, start) - start for start in starts] == [position] * len(rows)
        assert {impl.durable_of(data, start) for start in starts} == {position - 10}
        assert {impl.store_time_of(data, start) for start in starts} == {time}
        assert impl.verify(data, position) == (starts[-1] if starts else 0, len(data))
        assert sum(impl.length_of(data, start) for start in starts) == len(data)


@given(batches)
def test_the_compiled_module_does_what_the_python_module_does(rows):
    unsealed = [frames.frame(*row) for row in rows]
    assert unsealed == [plain.frame(*row) for row in rows]
    data = sealed(rows)
    assert frames.seal(unsealed, 1000, 7, 1_700_000_000_000, 990) == data
    assert frames.scan(data) == plain.scan(data)
    assert frames.columns(data) == plain.columns(data)
    assert frames.columns(data)[-1] == b"".join(row[6] for row in rows)
    wire = b"".join(unsealed)
    assert frames.check_unsealed(wire, False) == plain.check_unsealed(wire, False) == unsealed


@given(properties)
def test_keys_are_the_user_properties_key_of_a_whole_block(block):
    found = plain.keys_of(block)
    assert frames.keys_of(block) == found
    try:
        user = decode_properties(block).user
    except UnicodeDecodeError:
        return
    except ValueError:
        user = []
    keys = dict.fromkeys(value for name, value in user if name == "key" and 0 < len(value.encode()) <= layout.MAX_KEY)
    assert [key.decode() for key in found] == list(keys)[: layout.MAX_KEYS]


@given(st.binary(max_size=40), properties)
def test_tags_agree_with_the_codec_of_properties(topic: bytes, block: bytes):
    tag = plain.tag_of(topic, block)
    assert frames.tag_of(topic, block) == tag
    scanned = frames.scan(frames.seal([frames.frame(1, 0, 0, topic, b"c", block, b"")], 0, 1, 5, 0))
    assert frames.unpack_refs(scanned[4][0])[3] == [tag]
    try:
        user = decode_properties(block).user
    except UnicodeDecodeError:
        return
    except ValueError:
        user = []
    named = [value.encode() for name, value in user if name == "ordering_key" and value]
    if named:
        assert tag == frames.crc32c(named[-1]) | layout.NAMES_KEY
    else:
        assert tag == frames.crc32c(topic) & ~layout.NAMES_KEY


@BOTH
def test_message_keys_are_read_from_a_property_block(impl):
    key = b"\x26\0\x03key\0\x05order"
    assert impl.keys_of(b"") == []
    assert impl.keys_of(key) == [b"order"]
    assert impl.keys_of(b"\x01\x01" + key + b"\x26\0\x01a\0\x01b" + b"\x26\0\x03key\0\0" + key) == [b"order"]
    for broken in (key[:-1], key + b"\x26", key + b"\x26\0\x03key", key + b"\x02\0", key + b"\x0b\x01", key + b"\xff"):
        assert impl.keys_of(broken) == []
    longest = b"\x26\0\x03key\0\xff" + bytes(255)
    assert impl.keys_of(longest) == [bytes(255)]
    assert impl.keys_of(b"\x26\0\x03key\x01\0" + bytes(256)) == []
    many = [b"%02d" % i for i in range(layout.MAX_KEYS + 1)]
    assert impl.keys_of(b"".join(b"\x26\0\x03key\0\x02" + each for each in many)) == many[:-1]


@BOTH
def test_scan_tells_which_messages_have_keys(impl):
    key = b"\x26\0\x03key\0\x01k"
    blocks = [b"", key, b"\x01\x01", key[:-1], key + key]
    rows = [row(1, 0, 0, 0, b"t", b"p", block, b"x") for block in blocks] + [row(2, 0, 0, 0, b"t", b"p", key, b"{}")]
    assert impl.scan(sealed(rows))[5] == [(1, key), (4, key + key)]


@given(batches, st.data())
def test_a_flipped_bit_is_seen(rows, data):
    good = sealed(rows)
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    starts = plain.split(good)
    hit = max(start for start in starts if start <= bit // 8)
    for impl in (frames, plain):
        assert impl.verify(bytes(bad), 1000) == (max([start for start in starts if start < hit], default=0), hit)


@given(batches, st.data())
def test_truncation_and_misplacement_are_seen(rows, data):
    good = sealed(rows)
    cut = data.draw(st.integers(0, len(good) - 1))
    whole = max(start for start in [*plain.split(good), 0] if start <= cut)
    for impl in (frames, plain):
        assert impl.verify(good[:cut], 1000)[1] == whole
        assert impl.verify(good, 1001) == (0, 0)
        assert impl.verify(good + b"\0" * 64, 1000)[1] == len(good)


@given(st.binary(max_size=200), st.integers(-10, 210))
def test_hostile_bytes_are_errors_and_never_read_outside(data, start):
    header = bytearray(layout.HEADER_SIZE)
    struct.pack_into("<IIHBB", header, 0, 0, len(data) + 48, layout.MAGIC, layout.VERSION, 1)
    header[32:48] = (data + bytes(16))[:16]
    for blob in (data, bytes(header) + data):
        for name in ("split", "check_unsealed", "scan", "columns"):
            assert outcome(getattr(frames, name), blob) == outcome(getattr(plain, name), blob)
        for name in ("decode", "length_of", "position_of", "store_time_of", "durable_of", "trailer_of", "verify"):
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
def test_frames_of_held_messages_have_a_trailer(impl):
    def frame(flags: int, trailer: int | None) -> bytes:
        return impl.frame(1, flags, 0, b"t", b"c", b"", b"xy", trailer)

    for flags in (FLAG_DELAYED, FLAG_HELD, FLAG_REVIVED):
        one = frame(flags, 2**64 - 2)
        assert one[-10:] == b"xy\xfe" + b"\xff" * 7
        assert impl.decode(one, 0)[6] == b"xy"
        assert impl.trailer_of(one, 0) == 2**64 - 2
        for cut in range(1, 11):  # of the payload and the trailer, so that it has no room
            short = bytearray(one[:-cut])
            short[4:8] = len(short).to_bytes(4, "little")
            if cut <= 2:
                assert impl.decode(bytes(short), 0)[6] == b"xy"[:-cut]
            else:
                with pytest.raises(ValueError, match="frame"):
                    impl.seal([bytes(short)], 0, 1, 1, 0)
                with pytest.raises(ValueError, match="frame"):
                    impl.check_unsealed(bytes(short))
    for flags, trailer in (
        *((0, 1), (FLAG_HALF, 1), (FLAG_DELAYED, None), (FLAG_REVIVED, None)),
        *((FLAG_REVIVED | FLAG_DELAYED, 1), (FLAG_REVIVED | FLAG_HALF, 1), (FLAG_DELAYED, -1), (FLAG_DELAYED, 2**64)),
    ):
        with pytest.raises(ValueError, match="trailer"):
            frame(flags, trailer)
    with pytest.raises(ValueError, match="trailer"):
        impl.trailer_of(frame(FLAG_HALF, None), 0)


@BOTH
def test_a_front_may_hand_in_held_messages_and_no_revived_ones(impl):
    held = [impl.frame(1, FLAG_HELD, 0, b"t", b"", b"", b"", 7), impl.frame(1, FLAG_HALF, 0, b"t", b"", b"", b"")]
    assert impl.check_unsealed(b"".join(held)) == held
    revived = impl.frame(1, FLAG_REVIVED, 0, b"t", b"", b"", b"", 7)
    with pytest.raises(ValueError, match="front"):
        impl.check_unsealed(revived)
    assert impl.check_unsealed(revived, False) == [revived]


@BOTH
def test_only_messages_are_accepted_from_the_wire(impl):
    control = impl.frame(layout.Kind.SESSION_OPENED, 0, 0, b"c", b"", b"", b"{}")
    with pytest.raises(ValueError, match="message"):
        impl.check_unsealed(control)
    assert impl.check_unsealed(control, False) == [control]
    assert impl.check_unsealed(b"") == []


@given(batches)
def test_decode_all_reads_every_frame(rows):
    log = sealed(rows)
    wanted = [
        (frames.position_of(log, start), frames.store_time_of(log, start), decoded[1], *decoded[3:])
        for start in frames.split(log)
        for decoded in [frames.decode(log, start)]
    ]
    for impl in (frames, plain):
        assert impl.decode_all(log) == wanted
        if log:
            with pytest.raises(ValueError, match="no frame"):
                impl.decode_all(log[:-1])


@given(st.lists(st.tuples(u64, u32, u64, u32), max_size=20))
def test_references_are_read_back_as_they_were_written(rows):
    cols = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    packed = frames.pack_refs(*cols)
    assert packed == plain.pack_refs(*cols)
    assert len(packed) == 24 * len(rows)
    assert frames.unpack_refs(packed) == plain.unpack_refs(packed) == tuple(cols)
    if rows:
        with pytest.raises(ValueError, match="whole"):
            frames.unpack_refs(packed[:-1])


def references(positions, lengths):
    return plain.pack_refs(positions, lengths, [7] * len(positions), [9] * len(positions))


@given(batches, st.data(), st.integers(0, 15))
def test_picked_frames_are_checked_one_by_one(rows, data, parts):
    log = sealed(rows)
    starts = frames.split(log)
    chosen = data.draw(st.lists(st.sampled_from(starts), max_size=8))
    lengths = [frames.length_of(log, start) for start in chosen]
    refs = references([1000 + start for start in chosen], lengths)
    pieces = [log[start : start + length] for start, length in zip(chosen, lengths, strict=True)]
    broken = bytearray(log)
    if chosen:
        at = data.draw(st.integers(0, len(chosen) - 1))
        broken[data.draw(st.integers(chosen[at], chosen[at] + lengths[at] - 1))] ^= 1
        broken_first = min(index for index, start in enumerate(chosen) if start == chosen[at])
    first = data.draw(st.integers(0, len(chosen)))
    stop = data.draw(st.integers(first, len(chosen)))
    for impl in (frames, plain):
        for piece in (log, memoryview(log), memoryview(bytearray(log))):
            assert impl.pick(piece, 1000, refs, 0, len(chosen)) == (b"".join(pieces), len(chosen))
        left = frames.without(b"".join(pieces[first:stop]), parts)
        assert impl.pick(log, 1000, refs, first, stop, parts) == (left, stop - first)
        if chosen:
            assert impl.pick(log, 1001, refs, 0, 1)[1] == 0
            left = frames.without(b"".join(pieces[:broken_first]), parts)
            assert impl.pick(memoryview(broken), 1000, refs, 0, len(chosen), parts) == (left, broken_first)
            assert impl.pick(log[: chosen[0] + lengths[0] - 1], 1000, refs, 0, 1) == (b"", 0)
            for position, length in ((1 << 63, len(log)), (1000 + chosen[0], 1 << 31), (1000 + chosen[0], 0)):
                assert impl.pick(log, 1000, references([position], [length]), 0, 1) == (b"", 0)
        for outside in ((0, len(chosen) + 1), (-1, 0), (1, 0)):
            with pytest.raises(ValueError, match="no such references"):
                impl.pick(log, 1000, refs, *outside)


@given(batches, st.data(), st.integers(0, 15))
def test_records_are_gathered_out_of_batches(rows, data, parts):
    log = sealed(rows)
    starts = frames.split(log)
    cuts = sorted(data.draw(st.sets(st.sampled_from(starts))) | {0}) if starts else []
    pieces = [log[cut:end] for cut, end in zip(cuts, [*cuts[1:], len(log)], strict=True)]
    begins = [1000 + cut for cut in cuts]
    low = data.draw(st.integers(0, len(cuts)))
    chosen = data.draw(st.lists(st.sampled_from(starts), max_size=8)) if starts else []
    lengths = [frames.length_of(log, start) for start in chosen]
    refs = references([1000 + start for start in chosen], lengths)
    first = data.draw(st.integers(0, len(chosen)))
    stop = first
    while stop < len(chosen) and low < len(cuts) and chosen[stop] >= cuts[low]:
        stop += 1
    wanted = [log[start : start + length] for start, length in zip(chosen, lengths, strict=True)][first:stop]
    damaged = [bytearray(piece) for piece in pieces]
    if stop > first:
        at = data.draw(st.integers(first, stop - 1))
        holder = max(index for index, cut in enumerate(cuts) if cut <= chosen[at])
        damaged[holder][chosen[at] - cuts[holder] + data.draw(st.integers(0, lengths[at] - 1))] ^= 1
        broken_first = chosen.index(chosen[at], first) - first
    for impl in (frames, plain):
        left = frames.without(b"".join(wanted), parts)
        assert impl.gather(begins, pieces, low, refs, first, parts) == (left, stop - first)
        if stop > first:
            left = frames.without(b"".join(wanted[:broken_first]), parts)
            found = impl.gather(begins, [bytes(each) for each in damaged], low, refs, first, parts)
            assert found == (left, broken_first)
            for position, length in ((999, 48), (1000 + len(log), 48), (1000 + chosen[first], 1 << 31)):
                assert impl.gather(begins, pieces, low, references([position], [length]), 0) == (b"", 0)
        for outside in (-1, len(chosen) + 1):
            with pytest.raises(ValueError, match="no such references"):
                impl.gather(begins, pieces, low, refs, outside)
        with pytest.raises(ValueError, match="no such batches"):
            impl.gather([*begins, 0], pieces, low, refs, 0)


places = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 300)), max_size=12)


@given(places, st.integers(0, 4000))
def test_references_are_counted_up_to_a_size(rows, size):
    refs = references([row[0] for row in rows], [row[1] for row in rows])
    fitting = max((n for n in range(len(rows) + 1) if sum(row[1] for row in rows[:n]) <= size), default=0)
    for impl in (frames, plain):
        assert impl.count_within(refs, size) == (max(fitting, 1) if rows else 0)
        if rows:
            assert impl.extent(refs) == (min(rows)[0], max(row[0] for row in rows))
        else:
            with pytest.raises(ValueError, match="no such references"):
                impl.extent(refs)


ordered = st.lists(st.tuples(st.integers(-20, 60), st.integers(1, 300)), min_size=1, max_size=12)


@given(ordered, st.data())
def test_a_read_includes_the_records_that_follow(steps, data):
    rows, at = [], 1000
    for gap, length in steps:
        rows.append((at + gap, length))
        at += gap + length
    refs = references([row[0] for row in rows], [row[1] for row in rows])
    first = data.draw(st.integers(0, len(rows) - 1))
    end, gap, most = (data.draw(st.integers(0, top)) for top in (4000, 50, 2000))
    begin, reached = rows[first][0], sum(rows[first])
    stop = first + 1
    while stop < len(rows):
        position, length = rows[stop]
        is_near = reached <= position <= reached + gap
        if not is_near or position >= end or position + length - begin > most:
            break
        reached = position + length
        stop += 1
    for impl in (frames, plain):
        assert impl.read_span(refs, first, end, gap, most) == (stop, begin, reached)
        for outside in (-1, len(rows)):
            with pytest.raises(ValueError, match="no such references"):
                impl.read_span(refs, outside, end, gap, most)


@given(batches, st.integers(0, 15))
def test_frames_without_some_of_their_parts(rows, parts):
    data = sealed(rows)
    left = frames.without(data, parts)
    assert plain.without(data, parts) == left
    starts = frames.split(left)
    for start, row, old in zip(starts, rows, frames.split(data), strict=True):
        kept = [b"" if parts >> part & 1 else row[3 + part] for part in range(4)]
        assert frames.decode(left, start) == (*row[:3], *kept)
        assert outcome(frames.trailer_of, left, start) == outcome(frames.trailer_of, data, old)
        assert frames.position_of(left, start) == frames.position_of(data, old)
        assert left[start : start + 4] == (bytes(4) if parts else data[old : old + 4])
    for impl in (frames, plain):
        with pytest.raises(ValueError, match="no frame"):
            impl.without(data[:-1], parts)
        assert impl.without(b"", parts) == b""


def test_columns_are_arrow_buffers():
    data = sealed([(1, 1, 0, b"a/b", b"me", b"", b"hello", None), (1, 18, 0, b"c", b"", b"pp", b"", 5)])
    rows, positions, times, flags, *buffers = frames.columns(data)
    assert rows == 2
    assert struct.unpack("<2q", positions) == (1000, 1000 + record.length_of(data, 0))
    assert struct.unpack("<2q", times) == (1_700_000_000_000,) * 2
    assert list(flags) == [1, 18]
    assert buffers[1::2] == [b"a/bc", b"me", b"pp", b"hello"]
    assert [struct.unpack("<3i", b) for b in buffers[::2]] == [(0, 3, 4), (0, 2, 2), (0, 0, 2), (0, 5, 5)]


@given(st.binary(max_size=100))
def test_crc_is_castagnoli_in_every_implementation(data):
    assert frames.crc32c(data) == frames.crc32c_table(data) == plain.crc32c(data)


def test_crc_of_every_length():
    """Long data is taken in lanes, three at a time, and the rest behind them word by word and byte by byte."""
    data = random.Random(5).randbytes(20_000)
    for length in [*range(600), *range(3060, 3080), *range(3160, 3180), 9999, 20_000]:
        assert frames.crc32c(data[:length]) == frames.crc32c_table(data[:length]) == plain.crc32c(data[:length])


def test_crc_of_the_rfc_3720_example():
    assert record.crc32c(b"123456789") == 0xE3069283
    assert record.crc32c(bytes(100_000)) == plain.crc32c(bytes(100_000))


@BOTH
@given(
    st.lists(st.tuples(u64, st.integers(0, 9) | st.integers(0x8000_0000, 0x8000_0003) | u32), max_size=200),
    st.lists(st.integers(0, 9) | u32, max_size=20),
    st.data(),
)
def test_references_are_found_by_tag_and_by_position(
    impl: object, rows: list[tuple[int, int]], tags: list[int], data: st.DataObject
) -> None:
    refs = impl.pack_refs([at for at, _ in rows], [1] * len(rows), [2] * len(rows), [tag for _, tag in rows])
    positions = data.draw(st.lists(st.sampled_from([at for at, _ in rows]) if rows else u64, max_size=9))
    named = [index for index, (_, tag) in enumerate(rows) if tag in tags or tag & layout.NAMES_KEY]
    assert impl.find_tags(refs, tags) == named
    assert impl.find_positions(refs, positions) == [index for index, (at, _) in enumerate(rows) if at in positions]
    with pytest.raises(ValueError, match="whole"):
        impl.find_tags(refs + b"x", tags)
