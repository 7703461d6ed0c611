"""`gateway.broker.eager_task`: a coroutine runs at once, and becomes a task only where it has to wait."""

import asyncio

import pytest

from gateway.broker.eager_task import start_eagerly


class Spawned:
    """The tasks that were made of coroutines."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def __call__(self, coroutine) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))


async def test_what_waits_for_nothing_is_done_at_once_and_is_no_task():
    spawned, done = Spawned(), []

    async def work() -> None:
        done.append(1)

    start_eagerly(work(), spawned)
    assert (done, spawned.tasks) == ([1], [])


@pytest.mark.parametrize("is_set_first", [False, True])
async def test_what_waits_continues_as_a_task(is_set_first):
    spawned, done = Spawned(), []
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        done.append(await future)
        await asyncio.sleep(0)
        done.append(asyncio.current_task())

    start_eagerly(work(), spawned)
    assert done == []
    if is_set_first:
        future.set_result("set")
    else:
        asyncio.get_running_loop().call_soon(future.set_result, "set")
    await spawned.tasks[0]
    assert done == ["set", spawned.tasks[0]]


async def test_a_bare_yield_and_an_exception_of_what_is_awaited_reach_the_coroutine():
    spawned, met = Spawned(), []
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await asyncio.sleep(0)
        try:
            await future
        except OSError as error:
            met.append(error)

    start_eagerly(work(), spawned)
    future.set_exception(failure := OSError("broken"))
    await spawned.tasks[0]
    assert met == [failure]


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_coroutine_is_cancelled_where_it_waits_also_before_its_task_has_run(turns):
    spawned, met = Spawned(), []
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await future
        except asyncio.CancelledError:
            met.append("cancelled")
            raise

    start_eagerly(work(), spawned)
    for _ in range(turns):
        await asyncio.sleep(0)
    spawned.tasks[0].cancel()
    await asyncio.gather(*spawned.tasks, return_exceptions=True)
    assert met == ["cancelled"]
    assert spawned.tasks[0].cancelled()


async def test_an_exception_before_the_first_wait_reaches_the_caller():
    async def work() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        start_eagerly(work(), Spawned())
