"""A run: load, faults for a while, then everything heals, and what was promised is held against what came."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

from cloud_sdk import Client, SluiceError
from tests.system.chaos.devices import Device, Mortal, Newcomer, Publisher, Subscriber
from tests.system.chaos.spark_stream import Record, SparkStream
from tests.system.chaos.world import World

MOVE_S = 0.15
RSS_MB = 400
AT_ONCE = 2  # faults
PARENTS = ("load", "late", "sdk", "wills", "kept")  # of all messages that are counted


class Run:
    """Everything of one run."""

    def __init__(self, world: World, spark: SparkStream | None = None) -> None:
        """spark: reads all messages meanwhile."""
        self.world = world
        self._spark = spark
        self.ones = [Publisher(world, f"one-{n}", b"load/one/%d" % n, 1) for n in range(2)]
        self.twos = [Publisher(world, f"two-{n}", b"load/two/%d" % n, 2) for n in range(2)]
        self.late = [Publisher(world, f"late-{q}", b"$delayed/1/late/%d" % q, q) for q in (1, 2)]
        self.kept = [Publisher(world, f"kept-{q}", b"kept/%d" % q, q, retain=True) for q in (1, 2)]
        self.all = [Subscriber(world, f"all-{n}", (b"load/#", 2), (b"late/#", 2)) for n in range(2)]
        self.at_1 = Subscriber(world, "at-1", (b"load/one/0", 1), (b"load/two/+", 1), (b"kept/#", 1))
        self.members = [Subscriber(world, f"member-{n}", (b"$share/g/load/#", 2)) for n in range(3)]
        self.mortals = [Mortal(world, f"mortal-{n}") for n in range(3)]
        self.newcomers = [Newcomer(world, f"newcomer-{n}") for n in range(2)]
        self.heirs = Subscriber(world, "heirs", (b"wills/#", 2))
        self.sent: list[bytes] = []  # by the SDK, acknowledged
        self.consumed: set[bytes] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stops = False

    @property
    def publishers(self) -> list[Publisher]:
        return [*self.ones, *self.twos, *self.late, *self.kept]

    @property
    def subscribers(self) -> list[Subscriber]:
        return [*self.all, self.at_1, *self.members, self.heirs]

    async def go(self, seconds: float) -> None:
        """Raises AssertionError with all that went wrong."""
        try:
            await self.world.open()
            if self._spark is not None:
                self._spark.start(self.world.endpoint, PARENTS)
            async with Client(self.world.endpoint, retry_seconds=self.world.patience_s) as client:
                await self._load(client, seconds)
                await self._heal()
                await self._check(client)
                await self._end()
            await self.world.check()
            self._weigh()
        finally:
            await self._end()
            if self._spark is not None:
                self._spark.kill()
            await self.world.close()
        assert not self.world.violations, "\n".join([*self.world.violations[:20], " · ".join(self.world.history)])

    async def _load(self, client: Client, seconds: float) -> None:
        for each in self.subscribers:
            self._spawn(each.run())
        await self._until(
            "everybody has subscribed", lambda: all(each.subscribed.is_set() for each in self.subscribers)
        )
        consumer = client.consumer("services", "sdk", invisible_seconds=3)
        for each in (*self.publishers, *self.mortals, *self.newcomers):
            self._spawn(each.run())
        self._spawn(self._send(client))
        self._spawn(self._consume(consumer))
        if self._spark is not None:
            await self._until("Spark reads", self._spark.has_read)
        mover = asyncio.create_task(self._move())
        until = monotonic() + seconds
        await asyncio.gather(*[self._befall(until) for _ in range(AT_ONCE)])
        mover.cancel()

    async def _befall(self, until: float) -> None:
        while monotonic() < until:
            await asyncio.sleep(self.world.rng.uniform(0.1, 1.5))
            await self.world.befall()

    async def _move(self) -> None:
        devices: list[Device] = [*self.publishers, *self.subscribers, *self.mortals]
        while True:
            await asyncio.sleep(MOVE_S)
            self.world.rng.choice(devices).move()

    async def _send(self, client: Client) -> None:
        number = 0
        while not self._stops:
            payload = b"sdk %d" % number
            number += 1
            try:
                await client.send(f"sdk/{number % 7}", payload)
            except SluiceError as error:
                self.world.wrong(f"the SDK: {error!r}")
            else:
                self.sent.append(payload)
            await asyncio.sleep(0.02)

    async def _consume(self, consumer: Any) -> None:
        async with consumer:
            async for message in consumer:
                self.consumed.add(message.payload)
                await message.ack()

    async def _heal(self) -> None:
        self._stops = True
        for publisher in self.publishers:
            publisher.stops = True
        await self._until("everything is acknowledged", lambda: all(each.is_idle for each in self.publishers))
        for mortal in self.mortals:
            mortal.is_over = True
            mortal.move()

    # --- what was promised

    async def _check(self, client: Client) -> None:
        for subscriber in self.all:
            for publisher in (*self.ones, *self.twos, *self.late):
                await self._came(subscriber, publisher)
        for publisher in (self.ones[0], *self.twos, *self.kept):
            await self._came(self.at_1, publisher)
        await self._shared()
        sent, consumed = set(self.sent), self.consumed
        await self._until("the SDK has all", lambda: sent <= consumed, lambda: sent - consumed)
        records = await self._stored(client)
        stored = Counter(payload for _, _, payload in records)
        for publisher in (*self.twos, self.late[1]):
            for number in range(publisher.numbers):
                count = stored[f"{publisher.name} {number}".encode()]
                if count != 1:
                    self.world.wrong(f"{publisher.name} {number} of QoS 2 is stored {count} times")
        for payload in self.sent:
            if stored[payload] != 1:
                self.world.wrong(f"{payload!r} of the SDK is stored {stored[payload]} times")
        self._wills(stored)
        await self._retained()
        for newcomer in self.newcomers:
            found = newcomer.found
            await self._until("what is set is found", lambda: newcomer.found > found)
        if self._spark is not None:
            await self._streamed(self._spark, client, records)

    async def _came(self, subscriber: Subscriber, publisher: Publisher) -> None:
        """All that was acknowledged came; of QoS 2 once, in order."""

        def missing() -> set[int]:
            return set(publisher.acknowledged) - set(subscriber.taken.get(publisher.name, ()))

        await self._until(f"{subscriber.name} has all of {publisher.name}", lambda: not missing(), missing)
        taken, again = subscriber.taken.get(publisher.name, []), subscriber.again.get(publisher.name, [])
        if taken != sorted(taken) and publisher not in self.late:
            self.world.wrong(f"{subscriber.name} has {publisher.name} out of order")
        if publisher.qos == 2 and subscriber.name.startswith("all") and again:
            self.world.wrong(f"{subscriber.name} has {publisher.name} of QoS 2 again: {again[:5]}")
        if publisher.qos == 2 and [number for number, dup in again if not dup]:
            self.world.wrong(f"{subscriber.name} has {publisher.name} again without DUP: {again[:5]}")

    async def _shared(self) -> None:
        for publisher in (*self.ones, *self.twos):

            def taken(publisher: Publisher = publisher) -> list[int]:
                return [number for each in self.members for number in each.taken.get(publisher.name, [])]

            def missing(publisher: Publisher = publisher, taken: Callable[[], list[int]] = taken) -> set[int]:
                return set(publisher.acknowledged) - set(taken())

            await self._until(f"the group has all of {publisher.name}", lambda: not missing(), missing)
            if publisher.qos == 2:
                twice = [number for number, count in Counter(taken()).items() if count > 1]
                twice += [number for each in self.members for number, _ in each.again.get(publisher.name, [])]
                if twice:
                    self.world.wrong(f"the group has {publisher.name} of QoS 2 twice: {twice[:5]}")

    def _wills(self, stored: Counter[bytes]) -> None:
        for mortal in self.mortals:
            for number in range(mortal.number + 1):
                count = stored[f"{mortal.name} {number}".encode()]
                if count > 1 or (number in mortal.due and not count):
                    self.world.wrong(f"the will {mortal.name} {number} was sent {count} times")

    async def _retained(self) -> None:
        late = Subscriber(self.world, "late-comer", (b"kept/#", 0))
        self._spawn(late.run())
        await self._until("a late comer has what is kept", lambda: len(late.taken) == len(self.kept))
        for publisher in self.kept:
            last, kept = max(publisher.acknowledged), late.taken.get(publisher.name, [-1])
            if kept[0] < last:
                self.world.wrong(f"of {publisher.name} {kept[0]} is kept, and {last} was acknowledged")
        late.is_over = True

    async def _streamed(self, spark: SparkStream, client: Client, records: list[Record]) -> None:
        """Spark has each record of the log once, all that was acknowledged among them, and nothing else. `records` were
        in the log before."""
        try:
            rows = await asyncio.to_thread(spark.end)
        except AssertionError as error:
            self.world.wrong(str(error))
            return
        if missing := Counter(records) - rows:
            self.world.wrong(f"Spark does not have {len(missing)} records: {sorted(missing)[:5]}")
        if more := rows - Counter(await self._stored(client)):
            self.world.wrong(f"Spark has {more.total()} rows that are not in the log, or again: {sorted(more)[:5]}")
        promised = {f"{each.name} {number}".encode() for each in self.publishers for number in each.acknowledged}
        if lost := promised.union(self.sent) - {payload for _, _, payload in rows}:
            self.world.wrong(f"Spark does not have what was acknowledged: {sorted(lost)[:5]}")

    async def _stored(self, client: Client) -> list[Record]:
        """The messages in the log, each as often as it is there."""
        found: list[Record] = []
        for parent in PARENTS:
            for partition in await client.partitions(parent):
                offset = partition.begin
                while offset < partition.end:
                    batch = await client.pull(parent, partition.partition, offset)
                    found += [(message.position, message.topic, message.payload) for message in batch]
                    offset = batch.next_offset
        return found

    def summary(self) -> str:
        published = sum(len(each.acknowledged) for each in self.publishers)
        wills = sum(len(each.due) for each in self.mortals)
        moves = sum(each.connections for each in (*self.publishers, *self.subscribers, *self.mortals))
        sent, faults = len(self.sent), len(self.world.history)
        found = f"{published} published, {sent} by the SDK, {wills} wills, {moves} connections, {faults} faults"
        found += f", {self._spark.summary()}" if self._spark is not None else ""
        return f"{found}, {self.world.kills} kills"

    def _weigh(self) -> None:
        for name, mb in self.world.rss_mb().items():
            if mb > RSS_MB:
                self.world.wrong(f"{name} has {mb} MB")

    # --- running

    async def _until(self, what: str, condition: Callable[[], bool], rest: Callable[[], object] | None = None) -> None:
        until = monotonic() + self.world.patience_s
        while not condition():
            if monotonic() > until:
                self.world.wrong(f"it did not come to that: {what}" + (f"; {str(rest())[:300]}" if rest else ""))
                return
            await asyncio.sleep(0.05)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(coroutine))

    async def _end(self) -> None:
        for each in (*self.publishers, *self.subscribers, *self.mortals, *self.newcomers):
            each.is_over = True
        for task in self._tasks:
            task.cancel()
        for end in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(end, Exception):
                self.world.wrong(f"a task ended: {end!r}")
        self._tasks.clear()
