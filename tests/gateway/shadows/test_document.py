"""The document of a shadow: merges, versions, deltas and what is refused."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.shadows.document import Shadow, ShadowRejected, parse_update
from gateway.shadows.topics import InvalidShadowName, ShadowName, parse_request_topic, shadow_name

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.booleans() | st.integers(-2, 2) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
CHANGES = st.dictionaries(NAMES, VALUES | st.none(), max_size=3)


def updated(shadow: Shadow, now_s: int = 1, **state: Any) -> Shadow:
    shadow.merge(parse_update(json.dumps({"state": state}).encode(), 8192, 8), now_s)
    return shadow


def test_an_update_is_merged_and_null_removes() -> None:
    shadow = updated(Shadow(), 1, desired={"on": True, "light": {"red": 1, "blue": 2}, "list": [1, {"x": 2}]})
    updated(shadow, 2, desired={"light": {"red": None, "green": 3}, "list": [4]}, reported={"on": False})
    assert shadow.state == {
        "desired": {"on": True, "light": {"blue": 2, "green": 3}, "list": [4]},
        "reported": {"on": False},
    }
    assert shadow.metadata["desired"] == {
        "on": {"timestamp": 1},
        "light": {"blue": {"timestamp": 1}, "green": {"timestamp": 2}},
        "list": [{"timestamp": 2}],
    }
    assert shadow.version == 2
    updated(shadow, 3, desired=None, reported={"on": None})
    assert (shadow.state, shadow.metadata, shadow.version, shadow.exists) == ({}, {}, 3, True)
    updated(shadow, 4, reported={"a": 1})
    updated(shadow, 5, reported={"a": {"b": 1}})
    updated(shadow, 6, reported={"a": {"c": 2}})
    assert shadow.metadata == {"reported": {"a": {"b": {"timestamp": 5}, "c": {"timestamp": 6}}}}


def test_the_delta_is_what_is_desired_and_not_reported() -> None:
    shadow = updated(Shadow(), 1, desired={"a": 1, "b": {"c": 1, "d": 2}, "e": [1, 2], "f": True, "g": {}})
    updated(shadow, 2, reported={"a": 1, "b": {"c": 1, "d": 3}, "e": [2, 1], "f": 1, "own": 7})
    state, metadata = shadow.delta()
    assert state == {"b": {"d": 2}, "e": [1, 2], "f": True, "g": {}}
    assert metadata["b"] == {"d": {"timestamp": 1}}
    assert shadow.shown()["state"]["delta"] == state
    updated(shadow, 3, reported=state)
    assert shadow.delta() == ({}, {})
    assert "delta" not in shadow.shown()["state"]


@given(CHANGES, CHANGES)
def test_a_device_that_reports_its_delta_has_none(first: Any, second: Any) -> None:
    shadow = updated(updated(Shadow(), desired=first), reported=second)
    delta, _ = shadow.delta()
    before = copy.deepcopy(shadow.state.get("desired", {}))
    # A value in the place of an object, or the other way around, is replaced as a whole.
    for name in delta:
        if not isinstance(shadow.state.get("reported", {}).get(name), dict):
            updated(shadow, reported={name: None})
    updated(shadow, reported=delta)
    assert shadow.state.get("desired", {}) == before
    assert Shadow.of_value(shadow.value()) == shadow


@pytest.mark.parametrize(
    ("payload", "code", "text"),
    [
        (b"", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b"{}", 400, "no state"),
        (b'{"state": null}', 400, "state is not an object"),
        (b'{"state": {"delta": {}}}', 400, "desired and reported alone"),
        (b'{"state": {"desired": 1}}', 400, "desired is neither an object nor null"),
        (b'{"state": {}, "version": "1"}', 400, "version is not"),
        (b'{"state": {}, "version": true}', 400, "version is not"),
        (b'{"state": {}, "version": -1}', 400, "version is not"),
        (b'{"state": {}, "clientToken": 1}', 400, "clientToken is not"),
        (b'{"state": {}, "other": 1}', 400, "unknown field: 'other'"),
        (b'{"state": {"desired": {"a": {"b": [1]}}}}', 400, "more than 2 levels"),
        (b'{"state": {"desired": {"a": "' + b"x" * 100 + b'"}}}', 413, "the limit is 100"),
    ],
)
def test_what_is_refused(payload: bytes, code: int, text: str) -> None:
    with pytest.raises(ShadowRejected, match=text) as refused:
        parse_update(payload, 100, 2)
    assert refused.value.code == code


def test_a_refusal_has_the_token_of_the_request() -> None:
    with pytest.raises(ShadowRejected) as refused:
        parse_update(b'{"clientToken": "t"}', 100, 2)
    assert refused.value.token == "t"


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"version": "x"}', b"1"])
def test_an_entry_that_is_no_shadow(value: bytes) -> None:
    with pytest.raises(ShadowRejected, match="not that of a shadow"):
        Shadow.of_value(value)


def test_topics_of_requests() -> None:
    assert parse_request_topic(b"$shadow/lamp/update") == (ShadowName(b"lamp"), b"update")
    named = ShadowName(b"lamp", b"net")
    assert parse_request_topic(b"$shadow/lamp/name/net/get") == (named, b"get")
    assert (named.key, named.topic) == (b"lamp/net", b"$shadow/lamp/name/net")
    for other in (b"$shadow", b"$shadow/lamp", b"$shadow/lamp/update/accepted", b"$shadow/lamp/x/net/get"):
        assert parse_request_topic(other) is None
    for wrong in (b"$shadow//get", b"$shadow/lamp/name//get", b"$shadow/" + b"x" * 129 + b"/get", b"$shadow/\x01/get"):
        with pytest.raises(InvalidShadowName):
            parse_request_topic(wrong)
    with pytest.raises(InvalidShadowName, match="1 to 64 bytes"):
        shadow_name("lamp", "n" * 65)
