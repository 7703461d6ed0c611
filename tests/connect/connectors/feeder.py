"""Feeds a transactional sink with the messages of a partition, from where the sink says, as a worker does. It may end
itself by SIGKILL at a step of the sink. Run as a program by tests."""

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import count
from typing import Any

from connect.api import Partition, RetriableError, SinkRecord, TransactionalSinkTask
from tests.connect.connectors.harness import Context, settings_of

PARTITION = Partition("fleet", 3)


def message(offset: int) -> SinkRecord:
    """The message at an offset. Each third offset is of another topic that the sink does not read: it is not there."""
    return SinkRecord(
        f"fleet/d{offset % 4}/t",
        {"n": offset},
        key=f"k{offset}",
        headers=[("unit", "C")],
        timestamp_ms=1_780_000_000_000 + offset * 1000,
        payload=b'{"n":%d}' % offset,
        position=offset * 100,
        partition=PARTITION,
        offset=offset,
    )


def offsets(begin: int, end: int) -> list[int]:
    return [offset for offset in range(begin, end) if offset % 3]


async def feed(task: TransactionalSinkTask, end: int, chance: random.Random) -> None:
    """Put the messages up to an offset that the sink does not have yet, and wait until it has them."""
    at = (await task.open([PARTITION])).get(PARTITION, 0)
    left = offsets(at, end)
    while left or task.committed().get(PARTITION, 0) <= offsets(0, end)[-1]:
        size = chance.randint(1, 20)
        part, left = left[:size], left[size:]
        try:
            await task.put([message(offset) for offset in part])
        except RetriableError:
            left = offsets((await task.open([PARTITION])).get(PARTITION, 0), end)
        if not part:
            await asyncio.sleep(0.001)


def dying(call: Callable[..., Any], steps: int) -> Callable[..., Any]:
    """A function that kills this process before or after its call number `steps`."""
    calls = count(1)  # of several threads

    def made(*arguments: Any, **named: Any) -> Any:
        number = next(calls)
        if number == steps and steps % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return call(*arguments, **named)
        finally:
            if number == steps:
                os.kill(os.getpid(), signal.SIGKILL)

    return made


async def run(connector: str, given: Mapping[str, str], end: int, seed: int, patched: str, steps: int) -> None:
    module, _, name = connector.partition(":")
    made = getattr(import_module(module), name)()
    if steps:
        owner, _, attribute = patched.rpartition(".")
        module, _, name = owner.partition(":")
        found = import_module(module)
        target = getattr(found, name) if name else found
        setattr(target, attribute, dying(getattr(target, attribute), steps))
    task = made.task()
    await task.start(settings_of(made, given), Context())
    await feed(task, end, random.Random(seed))
    await task.stop()


if __name__ == "__main__":
    asyncio.run(run(**json.loads(sys.argv[1])))
