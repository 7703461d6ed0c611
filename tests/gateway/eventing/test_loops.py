"""Rules that read what they publish."""

from gateway.management.proto import management_pb2 as pb
from gateway.node.node import Node
from tests.gateway.eventing.rules import arrived, eventually, letters_of, payloads, publish, set_rule, settled


async def test_a_rule_publishes_an_event_once(node: Node) -> None:
    """Of each event, two rules on a loop make four: each may publish what the other one has published."""
    for name in ("one", "two"):
        await set_rule(node, name, topics=["loop/#"], topic={"topic": f"loop/{name}"})
    await publish(node, "loop/a", "x")
    letters = await eventually(lambda: _letters(node, 4, "one", "two"))
    assert {each.error for each in letters} == {
        f"this rule has published it before: the rules {names} form a loop"
        for names in ("one", "two", "one, two", "two, one")
    }
    await settled(node, "one", "two")
    assert len(await payloads(node, "loop/one")) + len(await payloads(node, "loop/two")) == 4


async def test_a_ring_of_rules_ends_after_one_pass_of_each(node: Node) -> None:
    for number in range(4):
        await set_rule(node, f"r{number}", topics=[f"ring/{number}"], topic={"topic": f"ring/{(number + 1) % 4}"})
    await publish(node, "ring/0", "x")
    (letter,) = await eventually(lambda: _letters(node, 1, "r0"))
    assert letter.error == "this rule has published it before: the rules r0, r1, r2, r3 form a loop"
    assert [len(await payloads(node, f"ring/{number}")) for number in range(4)] == [2, 1, 1, 1]


async def test_rules_that_all_read_one_another_make_a_bounded_number_of_messages(node: Node) -> None:
    """Each of five publishes the event, then what another one has published, and so on, up to three rules in a row."""
    names = [f"r{number}" for number in range(5)]
    for name in names:
        await set_rule(node, name, topics=["loop/#"], topic={"topic": f"loop/{name}"})
    await publish(node, "loop/a", "x")
    made = 5 + 5 * 4 + 5 * 4 * 3
    letters = await eventually(lambda: _letters(node, made * 5 - (made - 5), *names))
    await settled(node, *names)
    assert sum([len(await payloads(node, f"loop/{name}")) for name in names]) == made
    last = [each.error for each in letters if "no more rules may publish it" in each.error]
    assert len(last) == 5 * 4 * 3 * 2
    text = "the rules r0, r1, r2 have published this one after the other, and r0 reads it again"
    assert f"{text}: no more rules may publish it" in last


async def test_patterns_end_what_the_topics_would_make_a_loop(node: Node) -> None:
    """Steps that share one topic filter, and tell by its type what an event is."""
    for number in range(3):
        pattern = f'{{"data": {{"step": [{number}]}}}}'
        transform = {"template": f'{{"step": {number + 1}}}'}
        await set_rule(
            node, f"r{number}", topics=["bus/#"], pattern=pattern, transform=transform, topic={"topic": "bus/x"}
        )
    await publish(node, "bus/a", '{"step": 0}')
    await settled(node, "r0", "r1", "r2")
    assert sorted(await arrived(node, "bus/x", 3)) == ['{"step": 1}', '{"step": 2}', '{"step": 3}']


async def test_a_chain_of_rules_ends(node: Node) -> None:
    for number in range(9):
        await set_rule(node, f"r{number}", topics=[f"chain/{number}"], topic={"topic": f"chain/{number + 1}"})
    await publish(node, "chain/0", "x")
    (letter,) = await eventually(lambda: _letters(node, 1, "r8"))
    assert letter.error == "8 rules have published this one after the other, which is the limit"
    assert await payloads(node, "chain/8") == ["x"]
    assert await payloads(node, "chain/9") == []


async def _letters(node: Node, count: int, *names: str) -> list[pb.DeadLetter]:
    found = [letter for name in names for letter in await letters_of(node, name)]
    return found if len(found) >= count else []
