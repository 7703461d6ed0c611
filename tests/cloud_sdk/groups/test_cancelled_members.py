"""Members whose waits are cancelled at any moment, and who close and come back: nothing stays leased to nobody."""

import asyncio
from random import Random

import pytest

from cloud_sdk import Client, OutgoingMessage, SelectionOptions, SimpleConsumer
from tests.waiting import patience, until

MEMBERS = 4
EVERYTHING = SelectionOptions(sql="x IS NULL")  # which has the node look before it takes


class Group:
    """The messages that members got. Their leases outlast the test."""

    def __init__(self, client: Client, seed: int) -> None:
        self.client = client
        self.random = Random(seed)
        self.selection = EVERYTHING if self.random.random() < 0.5 else SelectionOptions()
        self.ordered = self.random.random() < 0.4
        self.done: set[bytes] = set()
        self.flushed: set[bytes] = set()
        self.is_over = False

    async def live(self) -> None:
        """As one member after the other."""
        while not self.is_over:
            records = self.random.choice([1, 4, 64])
            async with self.client.consumer(
                "g",
                "home",
                max_records=records,
                invisible_seconds=600,
                max_deliveries=250,  # who closes gives back what it has
                ordered=self.ordered,
                **self.selection,
            ) as consumer:
                for _ in range(self.random.randrange(1, 20)):
                    await self._take(consumer)

    async def _take(self, consumer: SimpleConsumer) -> None:
        waiting = asyncio.create_task(consumer.next(self.random.choice([0, 0.005, 0.05])))
        if self.random.random() < 0.6:
            for _ in range(self.random.randrange(40)):
                await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.wait((waiting,))
        message = None if waiting.cancelled() else waiting.result()
        if message is None:
            return
        assert message.payload not in self.flushed
        match self.random.randrange(10):
            case 0:
                await message.release()
            case 1:
                await message.nack(0.01)
            case number:
                await message.ack()
                self.done.add(message.payload)
                if number < 5:
                    assert await consumer.flush() == 0
                    self.flushed.add(message.payload)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_cancelled_every_message_is_done(client: Client, seed: int) -> None:
    group = Group(client, seed)
    sent: set[bytes] = set()
    async with patience(), asyncio.TaskGroup() as tasks:
        for _ in range(MEMBERS):
            tasks.create_task(group.live())
        for number in range(60):
            some = [b"%d.%d" % (number, i) for i in range(group.random.choice([1, 1, 2, 30]))]
            await client.send_many([OutgoingMessage(f"home/{len(each) * number % 7}", each) for each in some])
            sent.update(some)
        await until(lambda: sent <= group.done)
        group.is_over = True
    (state,) = await client.groups()
    assert state.lag == 0
