"""Rules that read what they publish."""

from gateway.management.proto import management_pb2 as pb
from gateway.node.node import Node
from tests.gateway.eventing.rules import eventually, letters_of, payloads, publish, set_rule, settled


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
