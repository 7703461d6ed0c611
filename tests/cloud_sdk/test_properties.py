"""The property block: round trips, and blocks that are none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_sdk import InvalidArgument, OutgoingMessage, Properties
from cloud_sdk.properties import decode, encode

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
blocks = st.builds(
    Properties,
    payload_format=st.none() | st.integers(0, 1),
    message_expiry=st.none() | st.integers(0, 0xFFFF_FFFF),
    content_type=st.none() | texts,
    response_topic=st.none() | texts,
    correlation_data=st.none() | st.binary(max_size=300),
    user=st.lists(st.tuples(texts, texts), max_size=4),
)


@given(blocks)
def test_a_block_reads_back_as_it_was(properties: Properties) -> None:
    assert decode(encode(properties)) == properties


@given(blocks, st.data())
def test_a_block_that_is_cut_short_is_an_error_or_a_shorter_block(properties: Properties, data: st.DataObject) -> None:
    block = encode(properties)
    cut = block[: data.draw(st.integers(0, len(block)))]
    try:
        assert encode(decode(cut)) == cut
    except ValueError:
        assert cut != block


@given(st.binary(max_size=60))
def test_any_bytes_are_a_block_or_a_value_error(block: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(block)


def test_properties_are_encoded_as_mqtt_encodes_them() -> None:
    properties = Properties(
        message_expiry=7, content_type="a", response_topic="b/c", correlation_data=b"\0", user=[("k", "v")]
    )
    assert encode(properties).hex(" ") == (
        "02 00 00 00 07 03 00 01 61 08 00 03 62 2f 63 09 00 01 00 26 00 01 6b 00 01 76"
    )


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage("", b""),
        OutgoingMessage("a/+", b""),
        OutgoingMessage("a/#", b""),
        OutgoingMessage("a\0", b""),
        OutgoingMessage("x" * 65_536, b""),
        OutgoingMessage("a", b"", qos=3),
        OutgoingMessage("a", b"", content_type="\0"),
        OutgoingMessage("a", b"", response_topic="x" * 65_536),
        OutgoingMessage("a", b"", message_expiry=-1),
    ],
)
def test_properties_that_mqtt_forbids_are_not_sent(message: OutgoingMessage) -> None:
    with pytest.raises(InvalidArgument):
        message.frame(b"me")
