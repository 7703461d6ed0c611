"""ClientLocks: one task at a time for a client id, in the order in which they asked, whoever is cancelled meanwhile."""

import asyncio

from gateway.broker.client_locks import ClientLocks

A = b"a"


class Asked:
    """Tasks that ask for the lock of one client id, each of which ends when it is told to."""

    def __init__(self) -> None:
        self.locks = ClientLocks()
        self.served: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
        await self.settle()

    async def _run(self, name: str) -> None:
        async with self.locks.lock(A) as is_ours:
            assert is_ours
            self.served.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.settle()

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    def tell(self, name: str) -> None:
        """`end`, but what follows from that has not happened yet."""
        self._ends[name].set()

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)


async def test_tasks_hold_the_lock_in_the_order_of_asking() -> None:
    asked = Asked()
    await asked.ask("1", "2", "3")
    assert asked.served == ["1"]
    assert A in asked.locks
    await asked.end("1")
    assert asked.served == ["1", "2"]
    await asked.ask("4")
    await asked.end("2")
    await asked.end("3")
    await asked.end("4")
    assert asked.served == ["1", "2", "3", "4"]
    assert len(asked.locks) == 0


async def test_other_clients_have_locks_of_their_own() -> None:
    locks = ClientLocks()
    async with locks.lock(A), locks.lock(b"b"):
        assert len(locks) == 2
    assert len(locks) == 0


async def test_a_cancelled_waiter_is_passed_over() -> None:
    asked = Asked()
    await asked.ask("1", "2", "3")
    asked.cancel("2")
    await asked.end("1")  # which finds the cancelled one ahead of the other
    assert asked.served == ["1", "3"]
    await asked.ask("4")
    asked.cancel("4")
    await asked.settle()
    await asked.end("3")
    assert asked.served == ["1", "3"]
    assert len(asked.locks) == 0


async def test_a_lock_that_comes_to_a_cancelled_task_passes_to_the_next() -> None:
    asked = Asked()
    await asked.ask("1", "2", "3")
    asked.tell("1")
    await asyncio.sleep(0)  # 1 goes on and hands the lock to 2, which has not run since
    asked.cancel("2")
    await asked.settle()
    assert asked.served == ["1", "3"]
    await asked.end("3")
    assert len(asked.locks) == 0


async def test_a_block_that_fails_releases_its_lock() -> None:
    locks = ClientLocks()
    try:
        async with locks.lock(A):
            raise KeyError
    except KeyError:
        pass
    assert A not in locks
