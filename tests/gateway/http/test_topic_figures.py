"""Figures of parent topics: exact for those that are shown, and in one sum for all others."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.shown import MAX_NAME, Rest, Shown
from gateway.http.topic_metrics import Samples
from tests.gateway.conftest import MakeNode
from tests.gateway.http.figures import samples, scrape
from tests.gateway.raw import RawClient

MESSAGES = "sluice_topic_messages_total"


async def publish(client: RawClient, topic: bytes, count: int = 1) -> None:
    for _ in range(count):
        await client.publish(topic, b"x", 1)


async def test_each_parent_topic_counts_its_messages_also_after_a_restart(make_node: MakeNode) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await publish(client, b"home/bath", 2)
    await publish(client, b"home/hall")
    await publish(client, b'a"b\\c')
    assert await samples(node, MESSAGES) == {"home": 3, 'a"b\\c': 1, "+other": 0}
    assert f'{MESSAGES}{{topic="a\\"b\\\\c"}} 1.0\n' in await scrape(node)
    await node.stop()
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await publish(client, b"home/bath")
    assert await samples(node, MESSAGES) == {"home": 4, 'a"b\\c': 1, "+other": 0}


async def test_topics_beyond_the_limit_are_one_sum(make_node: MakeNode) -> None:
    node = await make_node(http__metrics_topics=1)
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await publish(client, b"a")
    assert await samples(node, MESSAGES) == {"a": 1, "+other": 0}
    await publish(client, b"a/b", 2)
    await publish(client, b"other", 3)
    await publish(client, b"c", 4)
    assert await samples(node, MESSAGES) == {"a": 3, "+other": 7}


async def test_names_can_be_kept_to_oneself(make_node: MakeNode) -> None:
    node = await make_node(http__metrics_topics=0, http__metrics_groups=0)
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await scrape(node)
    await publish(client, b"secret")
    assert await samples(node, MESSAGES) == {"+other": 1}
    assert "secret" not in await scrape(node)


async def test_a_very_long_name_is_not_shown(make_node: MakeNode) -> None:
    node = await make_node()
    client = await RawClient.connect(node.ports.mqtt, b"c")
    await scrape(node)
    await publish(client, b"x" * (MAX_NAME + 1))
    assert await samples(node, MESSAGES) == {"+other": 1}


def test_a_name_gives_its_place_only_to_one_with_much_more_and_not_at_once() -> None:
    shown = Shown(2)
    shown.choose({b"a": 10, b"b": 20, b"c": 5}, 0)
    assert sorted(shown.names) == [b"a", b"b"]
    shown.choose({b"a": 10, b"b": 20, b"c": 1000}, 599)
    assert b"c" not in shown
    shown.choose({b"a": 10, b"b": 20, b"c": 20}, 600)
    assert b"c" not in shown
    shown.choose({b"a": 10, b"b": 20, b"c": 21, b"d": 15}, 600)
    assert sorted(shown.names) == [b"b", b"c"]
    shown.choose({b"b": 0, b"c": 0, b"d": 99, b"e": 98}, 601)
    assert sorted(shown.names) == [b"c", b"d"]  # `c` was shown a second ago


def test_the_samples_find_who_has_most_of_the_traffic() -> None:
    samples = Samples(4)
    for number in range(1000):
        samples.add(b"hot" if number % 3 == 0 else b"%d" % number)
    assert len(samples.counts) <= 4
    assert max(samples.counts, key=lambda name: samples.counts[name]) == b"hot"
    samples.halve()
    assert samples.counts[b"hot"] < 334


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sets(st.sampled_from("abc"))), max_size=30))
def test_the_rest_never_falls_and_has_what_nobody_else_shows(steps: list[tuple[str, int, set[str]]]) -> None:
    rest, counts, unshown = Rest(), dict.fromkeys("abc", 0), 0
    rest.update(0, {})
    shown: set[str] = set()
    for name, count, showing in steps:
        counts[name] += count
        unshown += 0 if name in shown & showing else count
        shown = showing
        before = rest.value
        rest.update(sum(counts.values()), {each.encode(): counts[each] for each in showing})
        assert rest.value >= before
        assert rest.value == unshown


def test_a_count_that_is_read_late_is_made_up_for() -> None:
    rest = Rest()
    rest.update(10, {b"a": 5})
    rest.update(11, {b"a": 8})  # two of these came after the total was read
    assert rest.value == 0
    rest.update(15, {b"a": 8})
    assert rest.value == 2
