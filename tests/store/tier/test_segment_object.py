"""The format of segment objects: every range of a segment can be read from it, and nothing else is taken for one."""

import zlib
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.tier.codec import BlockDamaged, Zstd
from store.tier.segment_object import (
    BLOCK,
    ObjectDamaged,
    SegmentIndex,
    index_size,
    pack_object,
    unpack_index,
)

contents = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda size, seed: Random(seed).randbytes(size), st.integers(0, 5000), st.integers()),
)


def packed(content: bytes, base: int = 0, block: int = BLOCK) -> bytes:
    def read(length: int, offset: int) -> bytes:
        return content[offset : offset + length]

    return b"".join(pack_object(base, base + len(content), read, Zstd(), block))


def index_of(data: bytes) -> SegmentIndex:
    index = unpack_index(data, len(data))
    assert isinstance(index, SegmentIndex)
    return index


def opened(data: bytes) -> bytes:
    index = index_of(data)
    pieces = [data[begin:end] for begin, end in zip(index.starts, index.starts[1:], strict=False)]
    return b"".join(index.open_block(number, piece, Zstd()) for number, piece in enumerate(pieces))


@given(contents, st.integers(0, 1 << 50), st.integers(1, 6000))
def test_an_object_has_the_segment(content: bytes, base: int, block: int) -> None:
    data = packed(content, base, block)
    index = index_of(data)
    assert (index.base, index.end, index.block) == (base, base + len(content), block)
    assert len(data) - index.starts[-1] == index_size(len(content), block)
    assert opened(data) == content


@given(contents, st.integers(50, 500), st.data())
def test_any_block_is_read_by_itself(content: bytes, block: int, data: st.DataObject) -> None:
    whole = packed(content, block=block)
    index = index_of(whole)
    if not content:
        return
    number = data.draw(st.integers(0, len(index.checksums) - 1))
    piece = whole[index.starts[number] : index.starts[number + 1]]
    assert index.open_block(number, piece, Zstd()) == content[number * block : (number + 1) * block]


@given(contents, st.integers(50, 500))
def test_the_end_of_an_object_tells_how_much_of_it_is_needed(content: bytes, block: int) -> None:
    data = packed(content, block=block)
    needed = index_size(len(content), block)
    assert unpack_index(data[-needed:], len(data)) == index_of(data)
    shorter = data[-max(needed - 8, 40) :]
    assert unpack_index(shorter, len(data)) in (needed, index_of(data))


@given(st.binary(min_size=1, max_size=600), st.integers(50, 300), st.data())
def test_a_changed_object_never_has_other_content(content: bytes, block: int, data: st.DataObject) -> None:
    whole = bytearray(packed(content, block=block))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(ObjectDamaged):  # unused bytes of the trailer may be anything
        assert opened(bytes(whole)) == content


@given(st.binary(max_size=200), st.data())
def test_no_part_of_an_object_is_taken_for_one(content: bytes, data: st.DataObject) -> None:
    whole = packed(content, block=64)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ObjectDamaged):
        index_of(cut)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_object(content: bytes) -> None:
    with pytest.raises(ObjectDamaged):
        index_of(content)


def test_a_block_that_says_it_is_larger_is_not_restored() -> None:
    with pytest.raises(BlockDamaged):
        Zstd().decompress(Zstd().compress(bytes(1 << 20)), 1000)
    with pytest.raises(BlockDamaged):
        Zstd().decompress(zlib.compress(b"x"), 1)
