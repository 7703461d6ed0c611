"""Rules as text: what is a rule, what it means, and where an error is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.rules.rule_text import ACTIONS_OF, AREAS, RuleError, parse_request, parse_rule, rule_text
from gateway.management.methods import METHODS
from gateway.management.proto.options_pb2 import CLUSTER, Kind
from gateway.management.proto.options_pb2 import Action as ProtoAction
from gateway.management.rights import action_bit
from matcher.names import is_valid_filter, split_shared
from store.api import ALL_ACTIONS, Action, Resource, Rule

words = st.text(st.sampled_from('ab:"* \u00a0\\ü$%'), min_size=1, max_size=8)
topics = st.lists(st.one_of(words, st.sampled_from(["+", "#", "%c", "%u", "", "topic:x", "group:"])), min_size=1).map(
    "/".join
)


def is_filter(text: str) -> bool:
    levels = text.split("/")
    return (
        is_valid_filter(text.encode())
        and not split_shared(text.encode())[0]
        and not any("%c" in level or "%u" in level for level in levels if level not in ("%c", "%u"))
    )


def bits(kind: Resource) -> st.SearchStrategy[int]:
    some = st.sets(st.sampled_from([each for each in Action if each in ACTIONS_OF[kind]]), min_size=1)
    return st.one_of(some.map(lambda each: sum(map(int, each))), st.just(ALL_ACTIONS))


sources = st.lists(
    st.one_of(
        st.just("local"),
        st.ip_addresses().map(lambda each: str(each) + ("/32" if each.version == 4 else "/128")),
        st.sampled_from(["10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0", "::/0"]),
    ).filter(lambda each: not each.startswith("::ffff:")),
    unique=True,
    max_size=4,
).map(tuple)


def rules_of(kind: Resource) -> st.SearchStrategy[Rule]:
    is_prefix = st.just(False) if kind == Resource.TOPIC else st.booleans()
    names = topics.filter(is_filter) if kind == Resource.TOPIC else words
    if kind == Resource.CLUSTER:
        names, is_prefix = st.sampled_from(AREAS), st.just(False)
    return st.builds(Rule, st.booleans(), bits(kind), st.just(int(kind)), names.map(str.encode), is_prefix, sources)


@given(st.sampled_from(list(Resource)).flatmap(rules_of))
def test_a_rule_reads_as_it_was_written(rule: Rule) -> None:
    assert parse_rule(rule_text(rule)) == rule


@given(st.text(st.sampled_from('allowdeny publishtopic:group*,/#+% "\u00a0from1.0')))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    for each in (text, f"allow {text}", f"allow publish {text}", f"deny PUB topic:{text}", f"allow publish x {text}"):
        try:
            rule = parse_rule(each)
        except RuleError:
            continue
        assert parse_rule(rule_text(rule)) == rule


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("allow publish home/%c/#", ""),
        ("deny both #", ""),
        ("allow subscribe $SYS/#", ""),
        ("allow both /", ""),
        ('deny publish "a b/+/c"', ""),
        ('deny publish a" "b', 'deny publish "a b"'),
        ("allow PUB,SUB topic:home/#", "allow both home/#"),
        ("allow SUB,PUB topic:home/# from 10.0.0.0/8,2001:db8::/32", "allow both home/# from 10.0.0.0/8,2001:db8::/32"),
        ("allow publish topic:x", "allow publish x"),
        ("allow publish topic:group:x", ""),
        ("allow LIST,GET group:*", ""),
        ("allow * cluster:*", ""),
        ("allow * cluster:store", ""),
        ("deny CREATE session:%u:* from 0.0.0.0/0,::/0,local", ""),
        ("allow publish x from 10.1.2.3", "allow publish x from 10.1.2.3/32"),
        ("allow publish home/sens*", ""),
        ('allow publish "home/*"', ""),
        ('allow publish "home/*"*', "allow publish home/**"),
        ('allow SUB group:"a ""b"""', ""),
        ("allow  publish\tx ", "allow publish x"),
        ("allow SUB group:$share/workers/home/+", ""),
        ("allow publish *", ""),
        ("allow publish from", ""),
    ],
)
def test_rules(text: str, shown: str) -> None:
    assert rule_text(parse_rule(text)) == (shown or text)


def test_a_prefix_and_a_name_that_ends_in_a_star_are_two_things() -> None:
    assert parse_rule("allow publish home/*") == Rule(True, Action.PUB, Resource.TOPIC, b"home/", True)
    assert parse_rule('allow publish "home/*"') == Rule(True, Action.PUB, Resource.TOPIC, b"home/*", False)
    assert parse_rule("allow GET group:g*") == Rule(True, Action.GET, Resource.GROUP, b"g", True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "allow or deny is missing at the end"),
        ("allow", "what is allowed or denied is missing at the end"),
        ("allow publish", "the resource is missing at the end"),
        ("permit publish x", "begins with allow or deny, not 'permit': character 1 "),
        ("allow read x", "a resource is topic, group, session, cluster .*: character 12 "),
        (
            "allow read topic:x",
            "'read' is no action here; the actions on a topic are PUB,SUB,.*: character 7 ",
        ),
        ("allow PUB,,SUB topic:x", "'' is no action here.*: character 7 "),
        ("allow CREATE topic:x", "'CREATE' is no action here; the actions on a topic are PUB,SUB,UPDATE,LIST,GET "),
        ("allow PUB group:x", "'PUB' is no action here; the actions on a group are SUB,UPDATE,DELETE,LIST,GET "),
        ("allow publish group:x", "'publish' is about topics.*: character 15 "),
        ("allow publish home/# from 10.0.0.0/33", "a source is a network.*: character 27 "),
        ("allow publish home/# from 10.0.0.1/8", "host bits set: character 27 "),
        ("allow publish home/# from ::ffff:10.0.0.0/104", "has an IPv4 address.*: character 27 "),
        ("allow publish home/# from fe80::1%eth0", "a source is a network.*: character 27 "),
        ("allow publish home/# from", "a network is missing at the end"),
        ("allow publish home/# from 10.0.0.0/8,", "a source is a network"),
        ("allow publish home/# from 10.0.0.0/8, ::/0", "a source is a network"),
        ("allow publish home/# from ::/0 ::/0", "nothing may follow, not '::/0' .*: character 32 "),
        ("allow publish home/# form 10.0.0.0/8", "only from may follow, not 'form' .*: character 22 "),
        ("allow publish a b", "only from may follow, not 'b' .*: character 17 "),
        ('allow publish "a b', "the quote is not closed: character 15 "),
        ('allow publish a"b', "the quote is not closed: character 16 "),
        ("allow publish a/#/b", "'a/#/b' is not a topic filter"),
        ("deny both a+", "'a.' is not a topic filter"),
        ("deny both +*", r"'\+\*' is not a topic filter"),
        ("deny both a/#*", "is not a topic filter"),
        ("allow publish x%c", "whole levels"),
        ("allow publish a/%u%c", "whole levels"),
        ("allow publish a/%u*", "whole levels"),
        ("allow subscribe $share/g/x", "shared subscriptions are group:"),
        ("allow subscribe $share/g/x*", "shared subscriptions are group:"),
        ("allow publish a\0b", "is not a topic filter"),
        (
            "allow GET cluster:disk",
            "the cluster has access, audit, bans, configuration, connectors, nodes, rules, schemas, services, store;",
        ),
        ("allow GET session:", "the name of a session has 1 to"),
        ("allow GET group:" + "x" * 65_536, "the name of a group has 1 to 65535 bytes"),
        ("allow publish x from " + ",".join(["local"] * 65), "at most 64 sources"),
    ],
)
def test_malformed_rules(text: str, says: str) -> None:
    with pytest.raises(RuleError, match=says):
        parse_rule(text)


def test_what_clients_do() -> None:
    assert parse_request("publish", "home/x") == (Action.PUB, Resource.TOPIC, "home/x", False)
    assert parse_request("SUB", "topic:home/*") == (Action.SUB, Resource.TOPIC, "home/*", False)
    assert parse_request("LIST", "group:*") == (Action.LIST, Resource.GROUP, "", True)
    for does, resource in (("both", "x"), ("*", "x"), ("PUB", "group:x"), ("LIST,GET", "x"), ("LIST", "cluster:x")):
        with pytest.raises(RuleError):
            parse_request(does, resource)


def test_every_right_of_the_management_surface_can_be_given() -> None:
    for method in METHODS:
        for right in method.rights:
            assert Resource(right.kind).name == Kind.Name(right.kind)
            action = Action(action_bit(right.action))
            assert action.name == ProtoAction.Name(right.action)
            assert action in ACTIONS_OF[Resource(right.kind)], method.name
            assert right.kind != CLUSTER or right.name in AREAS
