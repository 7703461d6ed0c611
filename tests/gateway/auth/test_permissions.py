"""Rules without sockets: which topics they allow, against a plain model; and what a filter may be granted."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.rules.permissions import Permissions, RuleBook
from gateway.auth.rules.rule_text import parse_rule
from matcher.names import is_valid_filter, matches
from store.api import ALL_ACTIONS, Action, Resource, Rule

LEVELS = (b"", b"a", b"c1", b"$x")
TOPICS = [b"/".join(levels) for count in (1, 2, 3, 4) for levels in product(LEVELS, repeat=count) if levels != (b"",)]
NAMES = (b"", b"a", b"c1", b"$x", b"+", b"#", b"a/c1", b"%c", b"%u")

SOURCES = ("192.0.2.7", "2001:db8::7", "local", "")

filters = (
    st.lists(st.sampled_from([*LEVELS, b"+", b"#", b"%c", b"%u"]), min_size=1, max_size=3)
    .map(b"/".join)
    .filter(is_valid_filter)
)
prefixes = st.tuples(
    st.lists(st.sampled_from([*LEVELS, b"+", b"%c", b"%u"]), max_size=2), st.sampled_from([b"", b"a", b"c", b"$"])
).map(lambda parts: b"/".join((*parts[0], parts[1])))
actions = st.integers(1, int(ALL_ACTIONS))
sources = st.sampled_from(((), ("192.0.2.0/24",), ("2001:db8::/32", "local")))
rules = st.one_of(
    st.builds(Rule, st.booleans(), actions, st.just(2), filters, st.just(False), sources),
    st.builds(Rule, st.booleans(), actions, st.just(2), prefixes, st.just(True), sources),
    st.builds(Rule, st.booleans(), actions, st.just(3), prefixes, st.booleans(), sources),
)


def permissions(texts: list[str], client_id: bytes = b"c1", user: bytes = b"", source: str = "") -> Permissions:
    found = RuleBook([parse_rule(text) for text in texts], user).permissions(client_id, False, source)
    assert found is not None
    return found


def comes_from(rule: Rule, source: str) -> bool:
    """A plain model of the sources above."""
    return (
        not rule.sources
        or source in {"192.0.2.0/24": ["192.0.2.7"], "2001:db8::/32": ["2001:db8::7", "local"]}[rule.sources[0]]
    )


def model(
    rules: list[Rule], names: dict[bytes, bytes], topic: bytes, default: bool, action: Action, source: str
) -> bool:
    """A plain model of the rules: the decision about a topic, level by level."""
    for rule in rules:
        if rule.kind != Resource.TOPIC or not rule.actions & action or not comes_from(rule, source):
            continue
        # A name stands for itself as a level of a topic, whatever it looks like as a part of a filter.
        wanted = rule.name.split(b"/")
        given = topic.split(b"/")
        if rule.is_prefix:
            if len(given) < len(wanted) or not given[len(wanted) - 1].startswith(wanted[-1]):
                continue
            last = given[len(wanted) - 1]
            given, wanted = [*given[: len(wanted) - 1], last], [*wanted[:-1], last]
        named = [
            i for i, level in enumerate(wanted) if level in names and not (rule.is_prefix and i == len(wanted) - 1)
        ]
        if any(i >= len(given) or not given[i] or given[i] != names[wanted[i]] for i in named):
            continue
        if named[:1] == [0] and given[0].startswith(b"$"):
            continue
        plain = b"/".join(given[i] if i in named else level for i, level in enumerate(wanted))
        if matches(plain, b"/".join(given)):
            return rule.allow
    return default


@given(
    st.lists(rules, max_size=5),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.booleans(),
    st.sampled_from(SOURCES),
    st.data(),
)
def test_the_first_rule_that_fits_a_topic_counts(
    given_rules: list[Rule], client_id: bytes, user: bytes, default: bool, source: str, data: st.DataObject
) -> None:
    found = RuleBook(given_rules, user).permissions(client_id, default, source)
    names = {b"%c": client_id, b"%u": user}
    for topic in data.draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=20)):
        for _ in range(2):  # the second answer is remembered
            verdict = found is None or found.may_publish(topic)
            assert verdict == model(given_rules, names, topic, default, Action.PUB, source), topic
        verdict = found is None or found.may_subscribe(topic)
        assert verdict == model(given_rules, names, topic, default, Action.SUB, source), topic
        for action in (Action.LIST, Action.GET):
            verdict = found is None or found.may_look(action, topic)
            reads = model(given_rules, names, topic, default, Action.SUB, source)
            assert verdict == model(given_rules, names, topic, reads, action, source), (action, topic)


@given(st.lists(rules, max_size=4), st.sampled_from(NAMES), st.booleans(), st.sampled_from(SOURCES), filters)
def test_a_filter_that_is_granted_matches_nothing_that_is_forbidden(
    given_rules: list[Rule], client_id: bytes, default: bool, source: str, topic_filter: bytes
) -> None:
    found = RuleBook(given_rules, b"a").permissions(client_id, default, source)
    if found is None or found.may_subscribe(topic_filter):
        names = {b"%c": client_id, b"%u": b"a"}
        for topic in TOPICS:
            if matches(topic_filter, topic):
                assert model(given_rules, names, topic, default, Action.SUB, source), topic


# No rule or filter has the levels z and az, so wildcards also match what no rule names.
_SOME = [b"/".join(levels) for count in (1, 2, 3) for levels in product((*LEVELS, b"z", b"az"), repeat=count)]
WITNESSES = [topic for topic in (*_SOME, *[b"%b/z" % topic for topic in _SOME if topic.count(b"/") == 2]) if topic]


@given(rules, st.booleans(), st.sampled_from(SOURCES), filters.filter(lambda each: b"%" not in each))
def test_one_rule_grants_a_filter_exactly_if_it_allows_all_topics_of_it(
    rule: Rule, default: bool, source: str, topic_filter: bytes
) -> None:
    found = RuleBook([rule], b"a").permissions(b"c1", default, source)
    names = {b"%c": b"c1", b"%u": b"a"}
    matched = [topic for topic in WITNESSES if matches(topic_filter, topic)]
    verdicts = [model([rule], names, topic, default, Action.SUB, source) for topic in matched]
    assert (found is None or found.may_subscribe(topic_filter)) == all(verdicts)


def named_model(rule: Rule, name: bytes) -> bool:
    """Whether a rule about groups has a name."""
    own = rule.name.replace(b"%c", b"c1").replace(b"%u", b"a")
    return name.startswith(own) if rule.is_prefix else name == own


@given(st.lists(rules, max_size=4), st.sampled_from(SOURCES), st.sampled_from([b"", b"a", b"ab", b"a/", b"c1", b"$"]))
def test_all_names_with_a_prefix_are_decided_together(given_rules: list[Rule], source: str, name: bytes) -> None:
    """As a whole, and one by one: names that begin so are a sample of all of them."""
    found = RuleBook(given_rules, b"a").permissions(b"c1", False, source)
    assert found is not None
    concerned = [r for r in given_rules if r.kind == 3 and r.actions & Action.LIST and comes_from(r, source)]
    ends = (b"", b"a", b"b", b"/", b"/a", b"c1", b"/c1", b"c", b"$", b"+", b"+/a", b"%")
    verdicts = []
    for end in ends:
        verdict = next((rule.allow for rule in concerned if named_model(rule, name + end)), None)
        assert found.decide(Action.LIST, Resource.GROUP, name + end) is verdict, name + end
        verdicts.append(verdict)
    if found.decide(Action.LIST, Resource.GROUP, name, True):
        assert all(verdicts)
    if set(verdicts) == {True} and len(concerned) == 1:
        assert found.decide(Action.LIST, Resource.GROUP, name, True)
    assert found.decide(Action.LIST, Resource.SESSION, name) is None


def test_rules_about_some_places_leave_others_alone() -> None:
    texts = ["deny publish x from 10.0.0.0/8,local", "allow publish x from 2001:db8::/32,10.1.0.0/16,192.0.2.1"]
    for source, verdict in {
        "10.1.2.3": False,
        "local": False,
        "2001:db8::1": True,
        "192.0.2.1": True,
        "192.0.2.2": False,
        "::1": False,
        "": False,
    }.items():
        assert permissions(texts, source=source).may_publish(b"x") is verdict, source
    assert permissions(["allow publish x from local"], source="local").may_publish(b"x")
    book = RuleBook([parse_rule("deny publish x from local")], b"")
    (inside, outside) = (book.permissions(b"", True, source) for source in ("local", "192.0.2.1"))
    assert inside is not None
    assert outside is not None
    assert (inside.may_publish(b"x"), outside.may_publish(b"x")) == (False, True)


@pytest.mark.parametrize(
    ("topic_filter", "covered", "touched"),
    [
        (b"home/sens", True, True),
        (b"home/sens7/temp", True, True),
        (b"home/sen", False, False),
        (b"home/sens7/#", True, True),
        (b"home/sens7/+", True, True),
        (b"home/#", False, True),
        (b"home/+", False, True),
        (b"home/+/x", False, True),
        (b"#", False, True),
        (b"home", False, False),
        (b"away/sens", False, False),
        (b"+/sens1", False, True),
    ],
)
def test_a_prefix_covers_what_begins_so(topic_filter: bytes, covered: bool, touched: bool) -> None:
    assert permissions(["allow SUB topic:home/sens*"]).may_subscribe(topic_filter) is covered
    assert permissions(["deny SUB topic:home/sens*", "allow both *"]).may_subscribe(topic_filter) is not touched


def test_a_star_stands_for_all_topics_also_those_with_a_dollar() -> None:
    found = permissions(["allow both *"])
    for name in (b"#", b"+/x", b"a/b", b"$SYS/#", b"$SYS/uptime", b"/"):
        assert found.may_subscribe(name), name
    assert found.may_publish(b"$SYS/x")
    assert not permissions(["allow both #"]).may_subscribe(b"$SYS/#")
    inside = permissions(["allow both home/*"])
    assert [inside.may_subscribe(name) for name in (b"home/#", b"home/+", b"home/a/#", b"home")] == [
        False,  # it also matches `home`
        True,
        True,
        False,
    ]


def test_names_of_sessions_and_groups_are_bound_to_the_client() -> None:
    found = permissions(["allow CREATE session:%u:*", "allow SUB group:%u-%c"], b"c1", b"alice")
    assert found.decide(Action.CREATE, Resource.SESSION, b"alice:phone")
    assert found.decide(Action.CREATE, Resource.SESSION, b"bob:phone") is None
    assert found.decide(Action.SUB, Resource.GROUP, b"alice-c1")
    for client_id, user in ((b"", b"alice"), (b"c1", b"")):
        nobody = permissions(["allow SUB group:%u-%c*"], client_id, user)
        assert nobody.decide(Action.SUB, Resource.GROUP, user + b"-" + client_id) is None
    tricky = permissions(["allow SUB group:%u-%c"], b"%u", b"%c")  # names are not placeholders
    assert tricky.decide(Action.SUB, Resource.GROUP, b"%c-%u")


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
    assert RuleBook([], b"").permissions(b"c", True, "") is None
    assert RuleBook([parse_rule("allow publish x")], b"").permissions(b"c", True, "") is None
    assert RuleBook([], b"").permissions(b"c", False, "") is not None


def test_clients_of_one_rule_book_do_not_share_their_ids() -> None:
    book = RuleBook([parse_rule("allow publish %c"), parse_rule("allow publish all")], b"")
    one, other = book.permissions(b"one", False, ""), book.permissions(b"other", False, "")
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


def test_rules_about_a_group_restrict_its_shared_subscription() -> None:
    """They restrict in addition to the rules about its topics."""
    everybody = ["deny SUB group:$share/workers/*", "allow subscribe home/#"]
    member = permissions(["allow SUB group:$share/workers/home/#", "allow SUB group:$share/workers/home/+", *everybody])
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


def test_one_name_that_is_denied_denies_all_names_together() -> None:
    found = permissions(["deny LIST group:ab", "allow LIST group:*"])
    assert found.decide(Action.LIST, Resource.GROUP, b"", True) is False
    assert found.decide(Action.LIST, Resource.GROUP, b"a", True) is False
    assert found.decide(Action.LIST, Resource.GROUP, b"b", True) is True
    assert found.decide(Action.LIST, Resource.GROUP, b"ac") is True
