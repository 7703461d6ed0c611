"""Topic names and filters, clause by clause."""

import itertools

import pytest

from matcher.names import (
    MAX_LENGTH,
    MAX_LEVELS,
    has_wildcard,
    is_valid_filter,
    is_valid_topic,
    levels,
    matches,
    parent_of,
    split_shared,
)

BAD_TEXT = [
    pytest.param(b"", id="MQTT-4.7.3-1 at least one character"),
    pytest.param(b"a\0b", id="MQTT-4.7.3-2 no U+0000"),
    pytest.param(b"a" * (MAX_LENGTH + 1), id="MQTT-4.7.3-3 at most 65535 bytes"),
    pytest.param(b"a/\xff", id="MQTT-1.5.4-1 UTF-8"),
    pytest.param(b"\xed\xa0\x80", id="MQTT-1.5.4-1 no surrogates"),
    pytest.param(b"\xc0\x80", id="MQTT-1.5.4-1 no overlong form"),
    pytest.param(b"/" * MAX_LEVELS, id="too many levels"),
]


@pytest.mark.parametrize("name", BAD_TEXT)
def test_names_that_are_neither_topic_nor_filter(name: bytes) -> None:
    assert not is_valid_topic(name)
    assert not is_valid_filter(name)


@pytest.mark.parametrize(
    "topic",
    [
        b"a",
        b"/",
        b"a//b",
        b"/finance",
        b"$SYS/x",
        "größe/°C".encode(),
        b"/" * (MAX_LEVELS - 1),
        b" ",
        b"a" * MAX_LENGTH,
    ],
)
def test_valid_topics_are_valid_filters(topic: bytes) -> None:
    assert is_valid_topic(topic)
    assert is_valid_filter(topic)


@pytest.mark.mqtt5("3.3.2-2", "4.7.0-1")
@pytest.mark.mqtt311("3.3.2-2", "4.7.1-1")
@pytest.mark.parametrize("topic", [b"+", b"#", b"a/+", b"a+", b"a/#", b"a#b"])
def test_no_wildcards_in_topics(topic: bytes) -> None:
    """MQTT-3.3.2-2, MQTT-4.7.0-1."""
    assert not is_valid_topic(topic)


@pytest.mark.mqtt5("4.7.1-1", "4.7.1-2")
@pytest.mark.mqtt311("4.7.1-2", "4.7.1-3")
@pytest.mark.parametrize("topic_filter", [b"+", b"#", b"+/+", b"+/tennis/#", b"sport/+/player1", b"/+", b"+/", b"/#"])
def test_valid_wildcard_filters(topic_filter: bytes) -> None:
    assert is_valid_filter(topic_filter)
    assert has_wildcard(topic_filter)


@pytest.mark.mqtt5("4.7.1-1", "4.7.1-2")
@pytest.mark.mqtt311("4.7.1-2", "4.7.1-3")
@pytest.mark.parametrize(
    "topic_filter", [b"sport/tennis#", b"sport/#/ranking", b"sport+", b"+a/b", b"##", b"++", b"#/"]
)
def test_invalid_wildcard_filters(topic_filter: bytes) -> None:
    """MQTT-4.7.1-1, MQTT-4.7.1-2."""
    assert not is_valid_filter(topic_filter)


def test_every_short_filter_is_valid_as_its_levels_say() -> None:
    """A # is the whole of the last level, and a + the whole of any level."""
    for length in range(1, 7):
        for characters in itertools.product(b"a/+#", repeat=length):
            topic_filter = bytes(characters)
            *above, last = topic_filter.split(b"/")
            is_valid = all(b"#" not in level for level in above) and (last == b"#" or b"#" not in last)
            is_valid = is_valid and all(level == b"+" or b"+" not in level for level in (*above, last))
            assert is_valid_filter(topic_filter) == is_valid, topic_filter


@pytest.mark.mqtt5("4.8.2-1", "4.8.2-2")
@pytest.mark.parametrize(
    "topic_filter",
    [b"$share/", b"$share/g", b"$share/g/", b"$share//a", b"$share/g+/a", b"$share/#/a", b"$share/+/a", b"$share/g/a#"],
)
def test_invalid_shared_filters(topic_filter: bytes) -> None:
    """MQTT-4.8.2-1, MQTT-4.8.2-2."""
    assert not is_valid_filter(topic_filter)


def test_split_shared() -> None:
    assert is_valid_filter(b"$share/g/a/+/#")
    assert split_shared(b"$share/g/a/+/#") == (b"g", b"a/+/#")
    assert split_shared(b"$share/g//") == (b"g", b"/")
    assert split_shared(b"a/b") == (b"", b"a/b")
    assert split_shared(b"$SYS/b") == (b"", b"$SYS/b")


def test_levels_and_parent() -> None:
    assert levels(b"a//b/") == [b"a", b"", b"b", b""]
    assert parent_of(b"home/bath/temp") == b"home"
    assert parent_of(b"home") == b"home"
    assert parent_of(b"/home") == b""


@pytest.mark.mqtt5("4.7.2-1", "4.7.3-4")
@pytest.mark.mqtt311("4.7.2-1", "4.7.3-4")
@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        (b"sport/tennis/player1/#", b"sport/tennis/player1", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/ranking", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/score/wimbledon", True),
        (b"sport/#", b"sport", True),
        (b"#", b"a/b/c", True),
        (b"sport/tennis/+", b"sport/tennis/player1", True),
        (b"sport/tennis/+", b"sport/tennis/player1/ranking", False),
        (b"sport/+", b"sport", False),
        (b"sport/+", b"sport/", True),
        (b"+/+", b"/finance", True),
        (b"/+", b"/finance", True),
        (b"+", b"/finance", False),
        (b"+/", b"a", False),
        (b"+/", b"a/", True),
        (b"#", b"$SYS/monitor", False),
        (b"+/monitor/Clients", b"$SYS/monitor/Clients", False),
        (b"$SYS/#", b"$SYS/monitor", True),
        (b"$SYS/monitor/+", b"$SYS/monitor/Clients", True),
        (b"ACCOUNTS", b"Accounts", False),
        (b"a/b", b"a/b", True),
        (b"a/b/+/#", b"a/b", False),
    ],
)
def test_filters_match_topics_as_the_standard_says(topic_filter: bytes, topic: bytes, expected: bool) -> None:
    """The examples of 4.7.1.2, 4.7.1.3 and MQTT-4.7.2-1."""
    assert matches(topic_filter, topic) is expected
