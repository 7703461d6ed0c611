"""Rules without sockets: which topics they allow, against a plain model; and what a filter may be granted."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.permissions import Permissions, RuleBook
from gateway.management.access import parse_rule, rule_text
from gateway.rpc.status import RequestError
from matcher.names import is_valid_filter, matches
from store.api import Rule

LEVELS = (b"", b"a", b"c1", b"$x")
TOPICS = [b"/".join(levels) for count in (1, 2, 3, 4) for levels in product(LEVELS, repeat=count) if levels != (b"",)]
NAMES = (b"", b"a", b"c1", b"$x", b"+", b"#", b"a/c1", b"%c", b"%u")

filters = (
    st.lists(st.sampled_from([*LEVELS, b"+", b"#", b"%c", b"%u"]), min_size=1, max_size=3)
    .map(b"/".join)
    .filter(is_valid_filter)
)
rules = st.builds(Rule, st.booleans(), st.booleans(), st.booleans(), filters)


def permissions(texts: list[str], client_id: bytes = b"c1", user: bytes = b"", default: bool = False) -> Permissions:
    found = RuleBook([parse_rule(text) for text in texts], user).permissions(client_id, default)
    assert found is not None
    return found


def model(rules: list[Rule], names: dict[bytes, bytes], topic: bytes, default: bool, publish: bool) -> bool:
    """A plain model of the rules: the decision about a topic, level by level."""
    for rule in rules:
        if not (rule.publish if publish else rule.subscribe):
            continue
        # A name stands for itself as a level of a topic, whatever it looks like as a part of a filter.
        wanted = rule.topic_filter.split(b"/")
        given = topic.split(b"/")
        named = [i for i, level in enumerate(wanted) if level in names]
        if any(i >= len(given) or not given[i] or given[i] != names[wanted[i]] for i in named):
            continue
        if named[:1] == [0] and given[0].startswith(b"$"):
            continue
        plain = b"/".join(given[i] if i in named else level for i, level in enumerate(wanted))
        if matches(plain, topic):
            return rule.allow
    return default


@given(st.lists(rules, max_size=5), st.sampled_from(NAMES), st.sampled_from(NAMES), st.booleans(), st.data())
def test_the_first_rule_that_fits_a_topic_counts(
    given_rules: list[Rule], client_id: bytes, user: bytes, default: bool, data: st.DataObject
) -> None:
    found = RuleBook(given_rules, user).permissions(client_id, default)
    names = {b"%c": client_id, b"%u": user}
    for topic in data.draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=20)):
        for _ in range(2):  # the second answer is remembered
            verdict = found is None or found.may_publish(topic)
            assert verdict == model(given_rules, names, topic, default, publish=True), topic
        verdict = found is None or found.may_subscribe(topic)
        assert verdict == model(given_rules, names, topic, default, publish=False), topic


@given(st.lists(rules, max_size=4), st.sampled_from(NAMES), st.booleans(), filters)
def test_a_filter_that_is_granted_matches_nothing_that_is_forbidden(
    given_rules: list[Rule], client_id: bytes, default: bool, topic_filter: bytes
) -> None:
    found = RuleBook(given_rules, b"a").permissions(client_id, default)
    if found is None or found.may_subscribe(topic_filter):
        names = {b"%c": client_id, b"%u": b"a"}
        for topic in TOPICS:
            if matches(topic_filter, topic):
                assert model(given_rules, names, topic, default, publish=False), topic


@pytest.mark.parametrize(
    ("topic_filter", "granted"),
    [
        (b"home/a/#", True),
        (b"home/a", True),
        (b"home/+/temp", False),  # it may match home/private/temp
        (b"home/private", False),
        (b"home/#", False),
        (b"#", False),
        (b"+/a", False),
        (b"public/+/x", True),
        (b"$share/group/public/#", True),
        (b"$share/group/home/private", False),
        (b"$SYS/uptime", False),  # public/# and the like say nothing of it, and the default denies
        (b"elsewhere", False),
    ],
)
def test_which_filters_are_granted(topic_filter: bytes, granted: bool) -> None:
    found = permissions(["deny subscribe home/private/#", "allow both home/#", "allow subscribe public/#"])
    assert found.may_subscribe(topic_filter) == granted


def test_the_users_own_topics() -> None:
    found = permissions(["allow both home/%u/%c/#"], b"c1", b"alice")
    assert found.may_publish(b"home/alice/c1/temp")
    assert found.may_subscribe(b"home/alice/c1/#")
    for topic in (b"home/alice/c2/temp", b"home/bob/c1", b"home/%u/%c/x"):
        assert not found.may_publish(topic)
    assert not found.may_subscribe(b"home/alice/+/temp")


@pytest.mark.parametrize("name", [b"+", b"#", b"a/b", b"%u", b"%c", b"a+", b""])
def test_a_name_that_is_no_level_opens_nothing(name: bytes) -> None:
    """A client that calls itself + must not get what all clients get."""
    for found in (permissions(["allow both home/%c/#"], name), permissions(["allow both home/%u/#"], b"c", name)):
        for topic in (b"home/x/y", b"home/+/y", b"home/a/b", b"home//b", b"home/%c/b", b"home/%u/b"):
            assert not found.may_publish(topic)
        for topic_filter in (b"home/+/#", b"home/#", b"home/a/b/#", b"home/x", b"home//#"):
            assert not found.may_subscribe(topic_filter)


@pytest.mark.parametrize("name", [b"$SYS", b"$inbox", b"$topics", b"$x", b"$"])
def test_a_name_with_a_dollar_opens_no_tree_of_the_node(name: bytes) -> None:
    """A client that calls itself $SYS must not get the figures of the node. Further down a $ means nothing."""
    for found in (permissions(["allow both %c/#"], name), permissions(["allow both %u/#"], b"c", name)):
        assert not found.may_publish(name + b"/victim")
        assert not found.may_subscribe(name + b"/#")
        assert not found.may_subscribe(name)
    found = permissions(["allow both home/%c/#"], name)
    assert found.may_publish(b"home/" + name + b"/temp")
    assert found.may_subscribe(b"home/" + name + b"/#")


def test_verdicts_of_long_topics_are_not_kept() -> None:
    """A thousand of the longest would be 60 MB a connection."""
    found = permissions(["allow publish #"])
    short, long = b"s" * 256, b"l" * 257
    for _ in range(2):
        assert found.may_publish(short)
        assert found.may_publish(long)
    assert list(found._verdicts) == [short]


def test_a_user_that_may_do_everything_is_not_checked() -> None:
    assert RuleBook([], b"").permissions(b"c", True) is None
    assert RuleBook([parse_rule("allow publish x")], b"").permissions(b"c", True) is None
    assert RuleBook([], b"").permissions(b"c", False) is not None


def test_clients_of_one_rule_book_do_not_share_their_ids() -> None:
    book = RuleBook([parse_rule("allow publish %c"), parse_rule("allow publish all")], b"")
    one, other = book.permissions(b"one", False), book.permissions(b"other", False)
    assert one is not None
    assert other is not None
    assert (one.may_publish(b"one"), one.may_publish(b"other"), one.may_publish(b"all")) == (True, False, True)
    assert (other.may_publish(b"one"), other.may_publish(b"other")) == (False, True)


def test_verdicts_that_are_remembered_are_bounded() -> None:
    found = permissions(["allow publish a/#"])
    for number in range(5000):
        assert found.may_publish(b"a/%d" % number)
        assert not found.may_publish(b"b/%d" % number)
    assert len(found._verdicts) <= 1024


@pytest.mark.parametrize(
    "text",
    ["allow publish home/%c/#", "deny both #", "allow subscribe $SYS/#", "deny publish a b/+/c", "allow both /"],
)
def test_a_rule_reads_as_it_was_written(text: str) -> None:
    assert rule_text(parse_rule(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "allow", "allow publish", "permit publish x", "allow read x", "allow publish a/#/b", "deny both a+"),
        *("allow publish x%c", "allow publish a/%u%c", "allow subscribe $share/g/x", "allow publish a\0b"),
    ],
)
def test_malformed_rules(text: str) -> None:
    with pytest.raises(RequestError, match=r"rule|filter|levels"):
        parse_rule(text)


def test_rules_about_a_group_restrict_its_shared_subscription() -> None:
    """They restrict in addition to the rules about its topics."""
    everybody = ["deny subscribe $group/$share/workers/#", "allow subscribe home/#"]
    member = permissions(["allow subscribe $group/$share/workers/home/#", *everybody])
    other = permissions(everybody)
    verdicts = {
        b"$share/workers/home/#": (True, False),
        b"$share/workers/home/+": (True, False),
        b"$share/workers/away": (False, False),
        b"$share/others/home/#": (True, True),
        b"home/#": (True, True),
    }
    for topic_filter, (may_member, may_other) in verdicts.items():
        assert member.may_subscribe(topic_filter) is may_member, topic_filter
        assert other.may_subscribe(topic_filter) is may_other, topic_filter
