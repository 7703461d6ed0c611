"""The fuzz target, a short run of it. `make fuzz` is the long one."""

import asyncio

import uvloop

from tests.fuzz.inputs import batch, from_json, to_json
from tests.fuzz.world import World


async def play(seed: int, batches: int) -> int:
    """How many messages peers received."""
    async with World() as world:
        for number in range(batches):
            await world.run(batch(seed, number))
        return world.messages


def test_whatever_peers_say_the_node_serves_on() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(play(1, 12)) > 1000


def test_a_batch_is_made_again_from_its_seed_and_from_its_file() -> None:
    made = batch(7, 3)
    assert made == batch(7, 3) == from_json(to_json(made))
    assert made != batch(7, 4)
