"""`traceparent` as W3C Trace Context has it, section 3.2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.trace_context import TraceContext, read_trace

IDS = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


@given(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.booleans())
def test_what_is_written_is_read(trace_id: int, span_id: int, is_sampled: bool) -> None:
    context = TraceContext(trace_id, span_id, is_sampled, "")
    assert read_trace(context.traceparent) == context


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [
        (f"00-{IDS[0]}-{IDS[1]}-01", True),
        (f"00-{IDS[0]}-{IDS[1]}-00", False),
        (f"00-{IDS[0]}-{IDS[1]}-ff", True),  # other flags are ignored
        (f"cc-{IDS[0]}-{IDS[1]}-01-what-the-future-will-be-like", True),  # a later version may have more
    ],
)
def test_valid(text: str, is_sampled: bool) -> None:
    context = read_trace(text, "vendor=1")
    assert context == TraceContext(int(IDS[0], 16), int(IDS[1], 16), is_sampled, "vendor=1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{IDS[0]}-{IDS[1]}-01",
        f"00-{IDS[0]}-{IDS[1]}-01-more",
        f"cc-{IDS[0]}-{IDS[1]}-01.more",
        f"00-{'0' * 32}-{IDS[1]}-01",
        f"00-{IDS[0]}-{'0' * 16}-01",
        f"00-{IDS[0].upper()}-{IDS[1]}-01",
        f"00-{IDS[0]}-{IDS[1]}-1",
        f"00-{IDS[0]}-{IDS[1]}-01\n",
        f"00-{IDS[0][:-1]}\u0663-{IDS[1]}-01",
    ],
)
def test_invalid(text: str) -> None:
    assert read_trace(text) is None


def test_a_long_state_is_left_out() -> None:
    context = read_trace(f"00-{IDS[0]}-{IDS[1]}-01", "a" * 513)
    assert context is not None
    assert not context.state
