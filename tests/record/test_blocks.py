"""Levels and properties as Arrow buffers: the values, and both implementations are the same."""

import struct
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from record import _plain_blocks as plain

try:
    from record import _blocks as blocks
except ImportError:  # it is not compiled
    blocks = plain  # type: ignore[assignment]
BOTH = pytest.mark.parametrize("impl", [blocks, plain], ids=["compiled", "plain"])


def text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


names = st.sampled_from([b"key", b"tag", b"born-ms", b"", b"unit", b"ke", b"keys"])
values = st.sampled_from(
    [b"", b"1", b"1767225600000", b"253402300799999", b"253402300800000", b"0" * 15, b"1" * 16, b"-1", b"1.5", b"v"]
)
properties = st.one_of(
    st.sampled_from([b"\x01\x00", b"\x02\x00\x00\x00\x3c"]),
    st.builds(lambda which, data: which + text(data), st.sampled_from([b"\x03", b"\x08", b"\x09"]), values),
    st.builds(lambda name, value: b"\x26" + text(name) + text(value), names, values),
)
well_formed = st.lists(properties, max_size=8).map(b"".join)
any_block = st.one_of(
    well_formed,
    st.tuples(well_formed, st.integers(0, 20)).map(lambda pair: pair[0][: pair[1]]),
    st.binary(max_size=12),
)


def divided(rows: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Offsets and data of rows."""
    rows = list(rows)
    ends = [sum(map(len, rows[:count])) for count in range(len(rows) + 1)]
    return struct.pack(f"<{len(ends)}i", *ends), b"".join(rows)


def rows_of(offsets: bytes, data: bytes) -> list[bytes]:
    ends = struct.unpack(f"<{len(offsets) // 4}i", offsets)
    return [data[start:end] for start, end in pairwise(ends)]


@given(st.lists(any_block, max_size=20))
def test_both_read_the_same_properties(rows: list[bytes]) -> None:
    offsets, data = divided(rows)
    try:
        found: object = plain.property_columns(offsets, data)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            blocks.property_columns(offsets, data)
    else:
        assert blocks.property_columns(offsets, data) == found


@BOTH
def test_properties_of_rows(impl: object) -> None:
    def user(name: bytes, value: bytes) -> bytes:
        return b"\x26" + text(name) + text(value)

    first = user(b"key", b"k1") + b"\x03" + text(b"text/plain") + user(b"tag", b"a") + user(b"key", b"k2")
    second = user(b"tag", b"b") + user(b"born-ms", b"soon") + user(b"born-ms", b"12") + user(b"tag", b"c")
    found = impl.property_columns(*divided([first, b"", second]))  # type: ignore[attr-defined]
    assert (found[0], rows_of(*found[1:3])) == (b"\x01", [b"k1", b"", b""])
    assert struct.unpack("<4i", found[3]) == (0, 1, 1, 3)
    assert rows_of(*found[4:6]) == [b"a", b"b", b"c"]
    assert struct.unpack("<4i", found[6]) == (0, 2, 2, 4)
    assert rows_of(*found[7:9]) == [b"key", b"tag", b"tag", b"born-ms"]
    assert rows_of(*found[9:11]) == [b"k2", b"a", b"c", b"12"]
    assert (found[11], rows_of(*found[12:14])) == (b"\x01", [b"text/plain", b"", b""])
    assert (found[14], struct.unpack("<3q", found[15])) == (b"\x04", (0, 0, 12))


@given(st.lists(st.sampled_from([b"", b"a", b"/", b"a/b", b"//", b"a//b/", "é/ü".encode()]), max_size=20))
def test_levels(rows: list[bytes]) -> None:
    found = blocks.level_columns(*divided(rows))
    assert found == plain.level_columns(*divided(rows))
    levels = rows_of(*found[1:])
    ends = struct.unpack(f"<{len(rows) + 1}i", found[0])
    assert [levels[start:end] for start, end in pairwise(ends)] == [row.split(b"/") for row in rows]


@BOTH
@pytest.mark.parametrize("offsets", [b"", struct.pack("<2i", 0, 9), struct.pack("<3i", 0, 2, 1), struct.pack("<i", -1)])
def test_offsets_of_other_data_are_refused(impl: object, offsets: bytes) -> None:
    with pytest.raises(ValueError, match="offsets"):
        impl.property_columns(offsets, b"ab")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="offsets"):
        impl.level_columns(offsets, b"ab")  # type: ignore[attr-defined]
