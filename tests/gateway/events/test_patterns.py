"""Patterns: each kind of alternative, and all of them beside a model that is as plain as possible."""

import json
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.errors import EvaluationFailed, InvalidRule
from gateway.events.event import Event
from gateway.events.patterns import Pattern
from gateway.mqtt.properties import user_property


def event(data: object = None, topic: str = "fleet/7/temp", **properties: str) -> Event:
    block = b"".join(user_property(name.encode(), value.encode()) for name, value in properties.items())
    return Event(topic.encode(), json.dumps(data).encode(), block, b"device", 1, 7, 1_700_000_000_000)


def matches(pattern: object, tested: Event) -> bool:
    compiled = Pattern(json.dumps(pattern))
    found = compiled.matches(tested)
    assert found == all(step.holds for step in compiled.explain(tested)), "the explanation says something else"
    return found


@pytest.mark.parametrize(
    ("alternative", "yes", "no"),
    [
        ("a", ["a", ["b", "a"]], ["b", 1, None, ["b"], {}]),
        (1, [1, 1.0, [2, 1]], [True, "1", 2]),
        (True, [True], [1, False, "true"]),
        (None, [None], [0, "", False]),
        ({"prefix": "ab"}, ["ab", "abc"], ["a", "cab", 1]),
        ({"prefix": {"equals-ignore-case": "AB"}}, ["abc", "ABc"], ["a"]),
        ({"suffix": "bc"}, ["bc", "abc"], ["b", 1]),
        ({"suffix": {"equals-ignore-case": "BC"}}, ["abC"], ["b"]),
        ({"equals-ignore-case": "AbC"}, ["aBc"], ["ab", 1]),
        ({"wildcard": "a*c"}, ["ac", "abbc"], ["acb", "bac", 1]),
        ({"wildcard": "a\\*c%_"}, ["a*c%_"], ["abc%_", "a*cxx"]),
        ({"numeric": [">", 1, "<=", 2.5]}, [2, 2.5], [1, 3, "2", True]),
        ({"numeric": ["=", 2]}, [2, 2.0], [1]),
        ({"cidr": "10.0.0.0/8"}, ["10.1.2.3"], ["11.0.0.1", "x", 1, "::1"]),
        ({"cidr": "2001:db8::/32"}, ["2001:db8::1"], ["2001:db9::1"]),
        ({"exists": True}, ["x", None, 0], []),
        ({"anything-but": "a"}, ["b", 1, None], ["a"]),
        ({"anything-but": [1, "a", None]}, [2, "b", True], [1, "a", None]),
        ({"anything-but": {"prefix": "a"}}, ["b", 1], ["ab"]),
        ({"anything-but": {"wildcard": ["a*", "*z"]}}, ["b"], ["ab", "bz"]),
    ],
)
def test_alternatives(alternative: object, yes: list[object], no: list[object]) -> None:
    for value in yes:
        assert matches({"data": {"x": [alternative]}}, event({"x": value})), value
    for value in no:
        assert not matches({"data": {"x": [alternative]}}, event({"x": value})), value
    assert not matches({"data": {"x": [alternative]}}, event({"y": 1}))
    assert not matches({"data": {"x": [alternative]}}, event("a text"))


def test_what_is_not_there() -> None:
    pattern = {"data": {"x": [{"exists": False}, 1]}}
    assert matches(pattern, event({}))
    assert matches(pattern, event({"x": 1}))
    assert not matches(pattern, event({"x": 2}))
    assert matches({"properties": {"site": [{"exists": False}]}}, event())


def test_fields_of_the_message() -> None:
    tested = event({"a": {"b": [{"c": 1}, {"c": 2}]}}, site="north", type="reading")
    assert matches({"levels": {"1": ["fleet"], "3": [{"prefix": "t"}]}, "client": ["device"], "qos": [1]}, tested)
    assert matches({"topic": [{"wildcard": "fleet/*"}], "retain": [False], "type": ["reading"]}, tested)
    assert matches({"properties": {"site": ["north", "south"]}, "subject": ["fleet/7/temp"]}, tested)
    assert matches({"data": {"a": {"b": {"c": [2]}}}}, tested), "one element of the array matches"
    assert not matches({"levels": {"4": [{"exists": True}]}}, tested)


def test_one_of_several_patterns() -> None:
    pattern = {"qos": [1], "$or": [{"data": {"x": [1]}}, {"data": {"$or": [{"y": [2]}, {"z": [3]}]}}]}
    for data, expected in (({"x": 1}, True), ({"y": 2}, True), ({"z": 3}, True), ({"x": 2}, False)):
        assert matches(pattern, event(data)) is expected


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ([], "a JSON object"),
        ({}, "empty object"),
        ({"data": {}}, "data is an empty object"),
        ({"data": "x"}, "a list of alternatives or an object"),
        ({"data": []}, "no alternatives"),
        ({"data": [{"regex": "a+"}]}, "no matcher 'regex'"),
        ({"data": [{"prefix": "a", "suffix": "b"}]}, "one name"),
        ({"data": [{"prefix": 1}]}, "has a text"),
        ({"data": [{"numeric": [">"]}]}, "a comparison or a range"),
        ({"data": [{"numeric": ["~", 1]}]}, "a comparison or a range"),
        ({"data": [{"cidr": "10.0.0.0/99"}]}, "10.0.0.0/99"),
        ({"data": [{"wildcard": "a\\b"}]}, "behind a backslash"),
        ({"data": [{"wildcard": "a" * 300}]}, "at most 256"),
        ({"data": [{"exists": 1}]}, "true or false"),
        ({"data": [{"anything-but": []}]}, "one or more"),
        ({"data": [["a"]]}, "is no list"),
        ({"$or": {}}, "a list of patterns"),
    ],
)
def test_patterns_that_cannot_be_used(pattern: object, why: str) -> None:
    with pytest.raises(InvalidRule, match=why):
        Pattern(json.dumps(pattern))
    deep: object = ["x"]
    for _ in range(20):
        deep = {"a": deep}
    with pytest.raises(InvalidRule, match="deeper than"):
        Pattern(json.dumps({"data": deep}))
    with pytest.raises(InvalidRule, match="at most 16384 bytes"):
        Pattern(json.dumps({"data": ["x" * 20_000]}))


# --- beside a model

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from(["", "a", "ab", "10.0.0.1"]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=3))
alternatives = st.one_of(
    scalars.filter(lambda value: value != ""),
    st.sampled_from(["a", "b"]).map(lambda text: {"prefix": text}),
    st.sampled_from(["a", "b"]).map(lambda text: {"suffix": text}),
    st.just({"cidr": "10.0.0.0/24"}),
    st.booleans().map(lambda flag: {"exists": flag}),
    st.lists(st.one_of(st.integers(-1, 1), st.just("a")), min_size=1, max_size=2).map(
        lambda some: {"anything-but": some}
    ),
    st.integers(-2, 2).map(lambda number: {"numeric": [">=", number]}),
)
documents = st.dictionaries(st.sampled_from("xyz"), values, max_size=3)
patterns = st.dictionaries(
    st.sampled_from("xyz"), st.lists(alternatives, min_size=1, max_size=3), min_size=1, max_size=3
)


def model(alternative: Any, value: Any) -> bool:
    if not isinstance(alternative, dict):
        return (
            value == alternative
            and type(value is True or value is False) is bool
            and (isinstance(value, bool) == isinstance(alternative, bool))
        )
    ((name, wanted),) = alternative.items()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "prefix":
        return isinstance(value, str) and value.startswith(wanted)
    if name == "suffix":
        return isinstance(value, str) and value.endswith(wanted)
    if name == "numeric":
        return is_number and value >= wanted[1]
    if name == "anything-but":
        return not any(model(each, value) for each in wanted)
    if name == "exists":
        return bool(wanted)
    return value == "10.0.0.1" and ip_address(value) in ip_network(wanted)


@given(patterns, documents)
def test_patterns_say_what_the_model_says(pattern: dict[str, list[Any]], document: dict[str, Any]) -> None:
    expected = True
    for name, some in pattern.items():
        if name not in document:
            expected &= {"exists": False} in some
            continue
        value = document[name]
        elements = value if isinstance(value, list) else [value]
        expected &= any(model(alternative, each) for alternative in some for each in elements)
    assert matches({"data": pattern}, event(document)) is expected


@pytest.mark.parametrize(
    ("alternatives", "data"),
    [
        ([{"numeric": ["=", number]} for number in range(2, 52)], [1] * 300_000),
        ([{"cidr": f"10.0.{number}.0/24"} for number in range(50)], ["10.1.0.0"] * 50_000),
        ([{"anything-but": {"equals-ignore-case": ["y"] * 50}}], "x" * 1_000_000),
    ],
)
def test_many_alternatives_for_a_large_event_end(alternatives: list[Any], data: object) -> None:
    with pytest.raises(EvaluationFailed, match="too large for this rule"):
        matches({"data": {"a": alternatives}}, event({"a": data}))


def test_many_values_are_found_in_a_large_event() -> None:
    assert not matches({"data": {"a": [*range(2, 2000), "x", True]}}, event({"a": [1] * 300_000}))
    assert matches({"data": {"a": [*range(2, 2000), 1]}}, event({"a": [0] * 300_000 + [1]}))
