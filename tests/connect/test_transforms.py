"""Kafka's single-message transforms, predicates and converters."""

from decimal import Decimal
from typing import Any

import pytest

from connect.api import DataError, InvalidSettings, Partition, Record, SinkRecord, SourceRecord
from connect.configuration import read_configuration
from connect.plugins import CONVERTERS
from connect.runtime.pipeline import Pipeline
from connect.transforms.predicates import TopicNameMatches

TIME_MS = 1_767_225_600_123  # 2026-01-01T00:00:00.123Z


def sink(value: Any, topic: str = "a/b") -> SinkRecord:
    partition = Partition("a", 3)
    return SinkRecord(topic, value, headers=[("h", "1")], timestamp_ms=TIME_MS, partition=partition, offset=17)


def transformed(kind: str, record: Record, **settings: str) -> Record | None:
    given = {f"transforms.t.{name.replace('_', '.')}": text for name, text in settings.items()}
    base = {"name": "n", "connector.class": "file-sink", "topics": "a", "directory": "/x", "transforms": "t"}
    found = read_configuration({**base, "transforms.t.type": kind, **given})
    return Pipeline(found)._transformed(record)


def value_of(kind: str, value: Any, **settings: str) -> Any:
    record = transformed(kind, sink(value), **settings)
    assert record is not None
    return record.value


@pytest.mark.parametrize(
    ("kind", "settings", "before", "after"),
    [
        ("ExtractField", {"field": "a"}, {"a": 1}, 1),
        ("ExtractField", {"field": "b"}, {"a": 1}, None),
        ("ExtractField", {"field": "b"}, None, None),
        ("HoistField", {"field": "v"}, 5, {"v": 5}),
        ("ReplaceField", {"exclude": "a"}, {"a": 1, "b": 2}, {"b": 2}),
        ("ReplaceField", {"include": "a,b", "renames": "a:x"}, {"a": 1, "b": 2, "c": 3}, {"x": 1, "b": 2}),
        ("MaskField", {"fields": "a,b,c,d"}, {"a": "x", "b": 2, "c": True, "e": 1},
         {"a": "", "b": 0, "c": False, "e": 1}),
        ("MaskField", {"fields": "a,b", "replacement": "9"}, {"a": "x", "b": 2}, {"a": "9", "b": 9}),
        ("Flatten", {}, {"a": {"b": {"c": 1}}, "d": [1]}, {"a.b.c": 1, "d": [1]}),
        ("Flatten", {"delimiter": "_"}, {"a": {"b": 1}}, {"a_b": 1}),
        ("Cast", {"spec": "a:int32,b:string,c:boolean,d:float64"}, {"a": "7", "b": 1, "c": "TRUE", "d": 1, "e": 2},
         {"a": 7, "b": "1", "c": True, "d": 1.0, "e": 2}),
        ("Cast", {"spec": "int8"}, -3.9, -3),
        ("Cast", {"spec": "string"}, True, "true"),
        ("InsertField", {"topic_field": "t!", "partition_field": "p?", "offset_field": "o", "timestamp_field": "at",
                         "static_field": "s", "static_value": "x"}, {"a": 1},
         {"a": 1, "t": "a/b", "p": 3, "o": 17, "at": "2026-01-01T00:00:00.123+00:00", "s": "x"}),
        ("TimestampConverter", {"target_type": "unix", "field": "t"}, {"t": "2026-01-01T00:00:00.123Z"},
         {"t": TIME_MS}),
        ("TimestampConverter", {"target_type": "unix", "unix_precision": "seconds"}, "2026-01-01", TIME_MS // 1000),
        ("TimestampConverter", {"target_type": "string", "format": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"}, TIME_MS,
         "2026-01-01T00:00:00.123Z"),
        ("TimestampConverter", {"target_type": "unix", "format": "dd.MM.yy HH:mm Z"}, "01.01.26 01:00 +0100",
         TIME_MS - 123),
        ("TimestampConverter", {"target_type": "Timestamp"}, TIME_MS, "2026-01-01T00:00:00.123+00:00"),
        ("TimestampConverter", {"target_type": "Date"}, TIME_MS, "2026-01-01"),
        ("TimestampConverter", {"target_type": "Time"}, TIME_MS, "00:00:00.123"),
    ],
)  # fmt: skip
def test_values(kind: str, settings: dict[str, str], before: Any, after: Any) -> None:
    copy = dict(before) if isinstance(before, dict) else before
    assert value_of(kind, before, **settings) == after
    assert before == copy  # others may share it


@pytest.mark.parametrize(
    ("kind", "settings", "value"),
    [
        ("ExtractField", {"field": "a"}, [1]),
        ("ReplaceField", {"exclude": "a"}, "text"),
        ("MaskField", {"fields": "a", "replacement": "x"}, {"a": 1}),
        ("Cast", {"spec": "a:int8"}, {"a": 300}),
        ("Cast", {"spec": "a:boolean"}, {"a": "perhaps"}),
        ("Cast", {"spec": "int32"}, {"a": 1}),
        ("ValueToKey", {"fields": "k"}, {"a": 1}),
        ("HeaderFrom", {"fields": "a", "headers": "b", "operation": "copy"}, 1),
        ("TimestampConverter", {"target_type": "unix"}, "tomorrow"),
        ("TimestampConverter", {"target_type": "Timestamp"}, 1e300),
    ],
)
def test_records_that_do_not_fit_are_errors_of_data(kind: str, settings: dict[str, str], value: Any) -> None:
    with pytest.raises(DataError):
        value_of(kind, value, **settings)


def test_topics_keys_and_headers() -> None:
    def after(kind: str, value: Any = None, **settings: str) -> Record:
        record = transformed(kind, sink(value), **settings)
        assert record is not None
        return record

    assert after("RegexRouter", regex="(.*)/(.*)", replacement="x/$2/${1}").topic == "x/b/a"
    assert after("RegexRouter", regex="a", replacement="x").topic == "a/b"
    assert after("RegexRouter", regex="(x)?(?P<n>a).*", replacement="$0:$1ä\\t${n}").topic == "a/b:ä\\ta"
    assert after("TimestampRouter").topic == "a/b-20260101"
    assert after("TimestampRouter", topic_format="${timestamp}/${topic}", timestamp_format="yyyy").topic == "2026/a/b"
    assert after("ValueToKey", {"k": 5}, fields="k").key == "5"
    assert after("ValueToKey", {"k": 5, "l": "x"}, fields="k,l").key == '{"k":5,"l":"x"}'
    assert after("InsertHeader", header="x", value_literal="y").headers == [("h", "1"), ("x", "y")]
    assert after("DropHeaders", headers="h,i").headers == []
    moved = after("HeaderFrom", {"a": 1, "b": None, "c": 2}, fields="a,b", headers="x,y", operation="move")
    assert (moved.headers, moved.value) == ([("h", "1"), ("x", "1")], {"c": 2})


def test_predicates() -> None:
    base = {"name": "n", "connector.class": "file-sink", "topics": "a", "directory": "/x", "transforms": "t"}
    config = {**base, "transforms.t.type": "Filter", "predicates": "p", "transforms.t.predicate": "p"}

    def keeps(record: Record, negate: str = "false", **predicate: str) -> bool:
        given = {f"predicates.p.{name}": text for name, text in predicate.items()}
        found = read_configuration({**config, "transforms.t.negate": negate, **given})
        return Pipeline(found)._transformed(record) is not None

    assert not keeps(sink(1), type="TopicNameMatches", pattern="a/.")
    assert keeps(sink(1, "a/bc"), type="TopicNameMatches", pattern="a/.")
    assert keeps(sink(1), "true", type="TopicNameMatches", pattern="a/.")
    assert not keeps(sink(1), type="HasHeaderKey", name="h")
    assert keeps(sink(1), type="HasHeaderKey", name="i")
    assert not keeps(sink(None), type="org.apache.kafka.connect.transforms.predicates.RecordIsTombstone")
    assert keeps(sink(0), type="RecordIsTombstone")


@pytest.mark.parametrize(
    ("name", "payload", "value"),
    [
        ("json", b'{"a":[1,null]}', {"a": [1, None]}),
        ("json", b"", None),
        ("text", "ä".encode(), "ä"),
        ("raw", b"\xff", b"\xff"),
    ],
)
def test_converters(name: str, payload: bytes, value: Any) -> None:
    converter = CONVERTERS.find(name)({})
    assert converter.to_value(SinkRecord("t", None, payload=payload)) == value
    assert converter.to_payload(SourceRecord("t", value)) == payload


def test_what_converters_refuse_and_what_they_write() -> None:
    json, text, raw = (CONVERTERS.find(name)({}) for name in ("json", "text", "raw"))
    for converter, payload in ((json, b"{"), (json, b"\xff"), (json, b"NaN"), (text, b"\xff")):
        with pytest.raises(DataError):
            converter.to_value(SinkRecord("t", None, payload=payload))
    for converter, value in ((json, {1: object()}), (text, {}), (raw, 5)):
        with pytest.raises(DataError):
            converter.to_payload(SourceRecord("t", value))
    assert json.to_payload(SourceRecord("t", {"d": Decimal("1.10"), "b": b"\xff"})) == b'{"d":"1.10","b":"/w=="}'
    assert [each.to_payload(SourceRecord("t", None)) for each in (json, text, raw)] == [b""] * 3


@pytest.mark.parametrize("expression", ["(a+)+$", "(a+)+b", "(a|a)*b", "(a|aa)+b"])
def test_regular_expressions_take_no_exponential_time(expression: str) -> None:
    """A matcher that backtracks does not end here."""
    topic = "a" * 5_000 + "!"
    routed = transformed("RegexRouter", sink(1, topic), regex=expression, replacement="x")
    assert routed is not None
    assert routed.topic == topic
    predicate = TopicNameMatches({"pattern": expression})
    assert not predicate.test(sink(1, topic))
    assert predicate.test(sink(1, "aa")) is expression.endswith("$")


@pytest.mark.parametrize(
    ("regex", "replacement", "problem"),
    [
        ("(a", "x", "not a regular expression of RE2: missing"),
        ("(?=a)", "x", "not a regular expression of RE2"),
        (r"(a)\1", "x", "not a regular expression of RE2"),
        ("a" * 1_001, "x", "at most 1000 characters"),
        ("(((a{100}){100}){100})", "x", "not a regular expression of RE2"),
        ("(?:a?){100}" * 50, "x", "repeats too much: [0-9]+ instructions, not 2500 at most"),
        ("(a)" * 21, "x", "has 21 groups, not 20 at most"),
        ("(a)", "$2", "there is no group 2"),
        ("(a)", "${b}", "there is no group b"),
    ],
)
def test_regular_expressions_that_cannot_be_used(regex: str, replacement: str, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem):
        transformed("RegexRouter", sink(1), regex=regex, replacement=replacement)


def test_flatten_repeats_names_within_a_bound() -> None:
    """A small message must not become a large one."""
    wide = {"k" * 10_000: {str(number): 1 for number in range(100)}}
    with pytest.raises(DataError, match="repeated in more than 262144 characters"):
        value_of("Flatten", wide)
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(DataError, match="more than 64 levels"):
        value_of("Flatten", deep)
