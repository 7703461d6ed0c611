"""How filters lie to each other, against all topics of a small world."""

from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from matcher.cover import Shape, covers
from matcher.names import is_valid_filter, matches

LEVELS = (b"", b"a", b"b", b"$x")
TOPICS = [b"/".join(levels) for count in (1, 2, 3, 4) for levels in product(LEVELS, repeat=count)]
TOPICS = [topic for topic in TOPICS if topic]

filters = (
    st.lists(st.sampled_from([*LEVELS, b"+", b"#"]), min_size=1, max_size=3).map(b"/".join).filter(is_valid_filter)
)


@given(filters, filters)
@example(b"a/#", b"a")
@example(b"#", b"$x/a")
@example(b"a/+/#", b"a/#")
def test_a_filter_that_covers_another_matches_all_that_it_matches(wide: bytes, narrow: bytes) -> None:
    inside = [topic for topic in TOPICS if matches(narrow, topic)]
    if covers(wide, narrow):
        assert all(matches(wide, topic) for topic in inside)
    elif not wide.endswith(b"+/#"):  # +/# says what # says, in another way
        assert not all(matches(wide, topic) for topic in inside)


@given(filters, filters)
@example(b"a/#", b"a")
@example(b"a/b/#", b"a")
@example(b"+/a", b"$x/a")
@example(b"#", b"$x/#")
@example(b"a/#", b"ab")
@example(b"a/+/b", b"a/b")
@example(b"/#", b"+")
def test_filters_overlap_where_some_topic_matches_both(one: bytes, other: bytes) -> None:
    # An empty topic cannot be published to, but filters such as /# and + would both match it.
    both = any(matches(one, topic) and matches(other, topic) for topic in (b"", *TOPICS))
    left, right = Shape(one), Shape(other)
    assert left.overlaps(right) == right.overlaps(left) == both
