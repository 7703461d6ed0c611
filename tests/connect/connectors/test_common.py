"""What connectors to messaging systems have in common."""

import pytest

from connect.api import SourceRecord
from connect.connectors.common.clusters import CLUSTER, cross
from connect.connectors.common.headers import merged
from connect.connectors.common.topic_mapping import TopicMapping
from connect.connectors.common.unacknowledged import Unacknowledged


def test_topics_are_mapped_by_the_first_rule_that_matches() -> None:
    mapping = TopicMapping(["remote/+/x -> local/{1}/x", "plant/+/# -> {2}/of/{1}", "a/b -> c", "site/#->{1}"])
    for topic, wanted in {
        "remote/7/x": "local/7/x",
        "remote/7/8/x": "remote/7/8/x",
        "remote//x": "local//x",
        "plant/1/t/max": "t/max/of/1",
        "plant/1/$.{1}": "$.{1}/of/1",
        "a/b": "c",
        "a/b/c": "a/b/c",
        "site/a\nb": "a\nb",
        "": "",
    }.items():
        assert mapping(topic) == wanted
    assert TopicMapping([])("a/b") == "a/b"


@pytest.mark.parametrize(
    "rule",
    [
        "a",
        "a ->",
        "-> a",
        "a/#/b -> c",
        "a+ -> c",
        "+ -> {2}",
        "+ -> {0}",
        "a -> {1}",
        "+ -> +",
        "+ -> {",
        "+ -> {1",
        "+ -> {x}",
    ],
)
def test_a_rule_that_is_none_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"FILTER -> TOPIC|not a topic filter|wildcards|brace"):
        TopicMapping([rule])


def test_a_message_crosses_to_a_cluster_once() -> None:
    at_b = cross([("x", "1")], "a", "b")
    assert at_b == [("x", "1"), (CLUSTER, "a,b")]
    assert cross(at_b, "b", "a") is None
    at_c = cross(at_b, "b", "c")
    assert at_c == [("x", "1"), (CLUSTER, "a,b,c")]
    assert cross(at_c, "c", "a") is None
    assert cross([], "a", None) == [(CLUSTER, "a")]  # this cluster has no name
    assert cross([(CLUSTER, "a")], "a", None) == [(CLUSTER, "a")]


def test_values_of_a_name_that_repeats_are_joined() -> None:
    assert merged([("a", "1"), ("b", ""), ("a", "2"), ("b", "")]) == {"a": "1, 2", "b": ", "}


def test_receipts_come_in_the_order_of_messages_and_with_those_that_were_left_out() -> None:
    waiting = Unacknowledged[int]()
    assert not waiting.skip(0)
    records = [SourceRecord("a", b"") for _ in range(4)]
    for at, record in enumerate(records, 1):
        waiting.add(record, at * 10)
        assert waiting.skip(at * 10 + 1)
    assert waiting.take([SourceRecord("a", b"")]) == []
    assert waiting.take(records[:1]) == [10, 11]
    assert waiting.take(records[2:3]) == [20, 21, 30, 31]  # the one before it was dropped by a transform
    waiting.clear()
    assert waiting.take(records[3:]) == []
