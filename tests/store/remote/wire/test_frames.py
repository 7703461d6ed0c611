"""The frames of a connection: whatever pieces they arrive in, they are the same, and nonsense is refused."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.remote.wire.frames import MAX_FRAME, PREFACE, Frame, FrameKind, FrameReader, ProtocolViolated, head_of

FRAMES = st.lists(
    st.tuples(st.sampled_from([int(kind) for kind in FrameKind]), st.integers(0, 0xFFFFFFFF), st.binary(max_size=60)),
    max_size=8,
)


def sent(frames: list[Frame]) -> bytes:
    return PREFACE + b"".join(head_of(kind, number, len(body)) + body for kind, number, body in frames)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(FRAMES, st.lists(st.integers(0, 1 << 16), max_size=40))
def test_frames_arrive_whole_in_whatever_pieces(frames: list[Frame], cuts: list[int]) -> None:
    reader = FrameReader(60)
    assert [frame for piece in pieces(sent(frames), cuts) for frame in reader.feed(piece)] == frames


@given(FRAMES, st.binary(max_size=60))
def test_a_frame_is_found_with_its_last_byte(frames: list[Frame], body: bytes) -> None:
    reader = FrameReader(60)
    data = sent([*frames, (FrameKind.MESSAGE, 0, body)])
    assert reader.feed(data[:-1]) == frames
    assert reader.feed(data[-1:]) == [(FrameKind.MESSAGE, 0, body)]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5), st.booleans())
def test_noise_is_read_or_refused(noise: bytes, cuts: list[int], is_greeted: bool) -> None:
    reader = FrameReader(1000)
    with suppress(ProtocolViolated):
        for piece in pieces(PREFACE + noise if is_greeted else noise, cuts):
            for kind, _, body in reader.feed(piece):
                assert kind in set(FrameKind)
                assert len(body) <= 1000


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"\x10", b"SLUICE\n", b"PRI * HTTP/2.0"])
def test_another_protocol_is_known_by_its_first_bytes(begin: bytes) -> None:
    with pytest.raises(
        ProtocolViolated, match="does not speak the protocol between gateways and stores: it began with"
    ):
        FrameReader(10).feed(begin)


def test_a_frame_that_is_too_long_or_of_no_kind_is_refused_with_its_head() -> None:
    for limit in (10, MAX_FRAME):
        reader = FrameReader(limit)
        assert reader.feed(PREFACE + head_of(FrameKind.MESSAGE, 0, limit)) == []
        with pytest.raises(ProtocolViolated, match=f"a frame of {limit + 1} bytes, and {limit} is the limit"):
            FrameReader(limit).feed(PREFACE + head_of(FrameKind.MESSAGE, 0, limit + 1))
    with pytest.raises(ProtocolViolated, match="a frame of kind 7, which there is not"):
        FrameReader(10).feed(PREFACE + head_of(7, 0, 0))


def test_a_limit_can_be_raised_after_the_first_frame() -> None:
    reader = FrameReader(3)
    first, second = (FrameKind.MESSAGE, 0, b"abc"), (FrameKind.MESSAGE, 0, b"abcd")
    assert reader.feed(sent([first])) == [first]
    reader.limit = 4
    assert reader.feed(sent([second])[len(PREFACE) :]) == [second]
