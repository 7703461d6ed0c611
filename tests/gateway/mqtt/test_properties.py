"""The block of a message: reading, writing and changing it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.properties import (
    MessageProperties,
    build_message_block,
    message_expiry,
    number_property,
    read_message_block,
    read_publish_block,
    varint,
    with_message_expiry,
)
from tests.gateway.mqtt import wire

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
MESSAGES = st.builds(
    MessageProperties,
    content_type=st.none() | TEXT,
    response_topic=st.none() | st.sampled_from([b"a", b"a/b", "ü".encode()]),
    correlation_data=st.none() | st.binary(max_size=200),
    user=st.lists(st.tuples(TEXT, TEXT), max_size=5),
    message_expiry=st.none() | st.integers(0, 0xFFFF_FFFF),
    is_text=st.booleans(),
)


@given(MESSAGES)
def test_properties_are_read_back_as_they_were_written(message: MessageProperties) -> None:
    block = build_message_block(message)
    assert wire.fields(read_message_block(block)) == wire.fields(message)
    assert read_publish_block(block) == (block, 0, message.is_text, len(message.user))
    assert message_expiry(block) == message.message_expiry


@given(MESSAGES, st.integers(0, 0xFFFF_FFFF))
def test_message_expiry_is_replaced_in_its_place(message: MessageProperties, seconds: int) -> None:
    block = build_message_block(message)
    changed = with_message_expiry(block, seconds)
    assert message_expiry(changed) == seconds
    assert len(changed) == len(block) + (5 if message.message_expiry is None else 0)
    message.message_expiry = seconds
    assert wire.fields(read_message_block(changed)) == wire.fields(message)


@given(MESSAGES, MESSAGES, st.integers(1, 65535))
def test_the_alias_is_taken_out(before: MessageProperties, after: MessageProperties, alias: int) -> None:
    first = build_message_block(before)
    rest = build_message_block(MessageProperties(user=after.user))
    assert read_publish_block(first + b"\x23" + wire.u16(alias) + rest) == (
        first + rest,
        alias,
        before.is_text,
        len(before.user) + len(after.user),
    )


@pytest.mark.parametrize(
    "message",
    [
        MessageProperties(content_type="a\0"),
        MessageProperties(content_type="x" * 65_536),
        MessageProperties(response_topic=b"a/#"),
        MessageProperties(response_topic=b""),
        MessageProperties(response_topic=b"\xff"),
        MessageProperties(correlation_data=bytes(65_536)),
        MessageProperties(user=[("a", "\0")]),
        MessageProperties(user=[("a", "\ud800")]),
        MessageProperties(message_expiry=-1),
        MessageProperties(message_expiry=1 << 32),
    ],
)
def test_properties_that_mqtt_cannot_express(message: MessageProperties) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each has its own text
        build_message_block(message)


@pytest.mark.parametrize("block", [b"\x23\x00\x01", b"\x0b\x01", b"\x01", b"\x26\x00", b"\x00", b"\x02\x00\x00\x00"])
def test_malformed_property_blocks(block: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_message_block(block)


@pytest.mark.mqtt5("1.5.5-1")
def test_variable_byte_integers_have_their_bounds() -> None:
    """The bounds of 1.5.5, table 1-1."""
    for value in (0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455):
        assert varint(value) == wire.varint(value)
    with pytest.raises(ValueError, match="variable byte integer"):
        varint(268_435_456)
    assert number_property(0x0B, 300) == b"\x0b\xac\x02"
    assert number_property(0x21, 65_535) == b"\x21\xff\xff"
    with pytest.raises(ValueError, match="range"):
        number_property(0x21, 65_536)
