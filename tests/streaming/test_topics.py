"""Parents and filters: what of the log a query wants, and what its filters leave of that."""

import re
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from matcher.names import matches
from streaming.history.index import HistoryIndex
from streaming.option_values import OptionError
from streaming.source.offsets import Holding
from streaming.source.pushdown import Narrowing
from streaming.source.topics import ALL_TOPICS, Topics, TopicSelection, pattern_of

levels = st.sampled_from(["a", "b", "$c", "", "a.b", "é", "a b\n"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda start, rest, end: "/".join([*start, *rest, *end]),
    st.lists(levels, min_size=1, max_size=1),
    st.lists(levels | st.just("+"), max_size=3),
    st.sampled_from([[], ["#"]]),
).filter(bool)


@given(st.lists(filters, min_size=1, max_size=3), topics)
def test_a_pattern_is_what_the_filters_are(chosen: list[str], topic: str) -> None:
    pattern = pattern_of(chosen).replace(r"\z", r"\Z")  # what Python calls the end
    assert (re.match(pattern, topic) is not None) == any(matches(each.encode(), topic.encode()) for each in chosen)


def test_one_filter_is_the_nodes_work_and_several_are_the_tasks() -> None:
    assert Topics.of_parents("a,b").selection("a") == ALL_TOPICS
    assert Topics.of_filters("a/#").selection("a") == ALL_TOPICS
    assert Topics.of_filters("a/+/t,b/#").selection("a") == TopicSelection("a/+/t")
    assert Topics.of_filters("a/+/t,b/#").selection("b") == ALL_TOPICS
    assert Topics.of_filters("a/x,+/y,b").selection("a") == TopicSelection(pattern=pattern_of(["a/x", "+/y"]))
    assert Topics.of_filters("a/x,+/y,b").selection("c") == TopicSelection("+/y")


def test_a_wildcard_in_front_finds_parents_but_not_those_with_a_dollar() -> None:
    found = Topics.of_filters("+/y,$SYS/#")
    assert found.parents is None
    assert found.matching(["a", "$SYS", "$inbox"]) == ["a", "$SYS"]
    assert Topics.of_filters('["a,b/#", "c"]').parents == ("a,b", "c")
    assert Topics.of_parents("a, b").matching(("a", "b")) == ["a", "b"]


@pytest.mark.parametrize("bad", ["a/#/b", "a+", "a/b#", "", "a,"])
def test_invalid_filters(bad: str) -> None:
    with pytest.raises(OptionError, match="not an MQTT topic filter"):
        Topics.of_filters(bad)


def narrowed(*given: Filter) -> Narrowing:
    return Narrowing.by(given)


def test_filters_of_topics_leave_parents_and_filters() -> None:
    both = Topics.of_parents("a,b")
    only = narrowed(EqualTo(("topic",), "a/x"), IsNotNull(("topic",))).topics(both)
    assert only.matching(("a", "b")) == ["a"]
    assert only.selection("a") == TopicSelection("a/x")
    several = narrowed(In(("topic",), ("a/x", "a/y", "c/z"))).topics(both)
    assert several.selection("a") == TopicSelection(pattern=pattern_of(["a/x", "a/y"]), names=("a/x", "a/y"))
    # Nobody asks the node for a topic that the filter does not match: the user may have no right to it.
    rightful = narrowed(In(("topic",), ("a/b", "a/x", "a/x/t"))).topics(Topics.of_filters("a/x/#"))
    assert rightful.selection("a") == TopicSelection("a/x/#", names=("a/x", "a/x/t"))
    begun = narrowed(StringStartsWith(("topic",), "a/room/t")).topics(both)
    assert begun.matching(("a", "b")) == ["a"]
    assert begun.selection("a") == TopicSelection("a/room/#")
    assert narrowed(StringStartsWith(("topic",), "a")).topics(both) == both
    # What the options want is kept to, whatever a query adds.
    mixed = narrowed(EqualTo(("topic",), "a/x")).topics(Topics.of_filters("a/+"))
    assert mixed.selection("a") == TopicSelection("a/x", pattern_of(["a/+"]))
    assert narrowed(EqualTo(("topic",), "a/+")).topics(both) == both


def test_filters_unknown_to_the_log_narrow_nothing() -> None:
    nothing = (
        EqualTo(("client_id",), "c"),
        EqualTo(("topic",), None),
        Not(EqualTo(("topic",), "a/x")),
        LessThan(("stored_at",), datetime(2026, 1, 1, tzinfo=UTC)),
        GreaterThan(("published_at",), datetime(2026, 1, 1, tzinfo=UTC)),
        GreaterThan(("stored_at",), datetime(2026, 1, 1)),  # noqa: DTZ001 - a time without a zone
        EqualTo(("body", "topic"), "a/x"),
    )
    assert narrowed(*nothing) == Narrowing()


def test_keys_that_the_node_can_find() -> None:
    parents = Topics.of_parents("a")
    assert narrowed(EqualTo(("key",), "k")).topics(parents).selection("a").keys == ("k",)
    both = narrowed(In(("key",), ("k", "l")), In(("key",), ("l", "m")))
    assert both.topics(parents).selection("a").keys == ("l",)
    for values in (("",), ("k" * 256,), tuple(map(str, range(17)))):
        assert narrowed(In(("key",), values)).topics(parents).selection("a").keys == ()


def test_filters_of_places() -> None:
    holdings = [Holding(("a", 0), 5, 100), Holding(("a", 1), 0, 50)]
    found = narrowed(
        EqualTo(("partition",), 1),
        GreaterThan(("offset",), 9),
        LessThanOrEqual(("offset",), 70),
        LessThan(("offset",), 90),
    )
    left = found.holdings(holdings)
    assert left == holdings[1:]

    class NoClient:
        def offset_at(self, parent: str, partition: int, time_ms: int) -> int:
            assert (parent, time_ms) == ("a", 1_500)
            return {0: 7, 1: 60}[partition]

    assert found.start(NoClient(), HistoryIndex(None), {("a", 1): 0}, left) == {("a", 1): 10}
    assert found.end({("a", 1): 50, ("a", 0): 100}) == {("a", 1): 50, ("a", 0): 71}
    assert narrowed(In(("offset",), (3, 8))).end({("a", 1): 50}) == {("a", 1): 9}
    timed = narrowed(GreaterThanOrEqual(("stored_at",), datetime(1970, 1, 1, 0, 0, 1, 500_999, UTC)))
    start = {("a", 0): 5, ("a", 1): 0}
    assert timed.start(NoClient(), HistoryIndex(None), start, holdings) == {
        ("a", 0): 7,
        ("a", 1): 50,
    }  # not behind the end
