"""Requests with several records: several at a time, tried again, and cut in halves where a record is refused."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from connect.api import ConnectError, DataError, RetriableError, SinkContext, SinkRecord

T = TypeVar("T")
_LONGEST_WAIT_S = 60.0  # between two tries of a task


class Refused(ConnectError):
    """The other system does not take a request because of something that it contains."""


class RateLimit:
    """Spaces requests evenly."""

    def __init__(self, a_second: float) -> None:
        """a_second: requests a second; 0: no limit."""
        self._pause_s = 1 / a_second if a_second else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next request may go."""
        if self._pause_s:
            now = asyncio.get_running_loop().time()
            at = max(now, self._next)
            self._next = at + self._pause_s
            await asyncio.sleep(at - now)


async def at_most(limit: int, jobs: Sequence[T], run: Callable[[T], Awaitable[None]]) -> None:
    """Run jobs, at most `limit` at a time, in their order. When one fails, those that have begun are finished, no other
    begins, and its error is raised."""
    iterator = iter(jobs)
    errors: list[Exception] = []

    async def work() -> None:
        for job in iterator:
            if errors:
                return
            try:
                await run(job)
            except Exception as error:  # noqa: BLE001 (raised when the others are done)
                errors.append(error)

    await asyncio.gather(*(work() for _ in range(min(limit, len(jobs)))))
    if errors:
        raise next((error for error in errors if not isinstance(error, RetriableError)), errors[0])


async def tried_again(send: Callable[[], Awaitable[T]], retries: int, backoff_ms: int) -> T:
    """The result of `send`. It is called again up to `retries` times if it raises `RetriableError`, after pauses that
    double, or after what the other system asks for if that is not longer than a minute."""
    for tries in range(retries + 1):
        try:
            return await send()
        except RetriableError as error:
            wait_s = max(backoff_ms / 1000 * 2**tries, error.retry_after_s or 0)
            if tries == retries or (error.retry_after_s or 0) > _LONGEST_WAIT_S:
                raise
        await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
    raise AssertionError


async def in_halves(
    batch: Sequence[tuple[SinkRecord, T]],
    send: Callable[[Sequence[tuple[SinkRecord, T]]], Awaitable[None]],
    context: SinkContext,
) -> None:
    """Send records, each with what was made of it. If they are `Refused`, send each half of them, and reject those that
    are refused alone.

    So `send` is called less than twice for each record."""
    try:
        await send(batch)
    except Refused as error:
        if len(batch) == 1:
            context.reject(batch[0][0], error)
            return
        middle = len(batch) // 2
        await in_halves(batch[:middle], send, context)
        await in_halves(batch[middle:], send, context)


def writable(
    records: Sequence[SinkRecord], make: Callable[[SinkRecord], T], context: SinkContext
) -> Iterator[tuple[SinkRecord, T]]:
    """Each record with what is made of it. Those that `make` raises `DataError` for are rejected."""
    for record in records:
        try:
            yield record, make(record)
        except DataError as error:
            context.reject(record, error)


def by_size(
    items: Sequence[tuple[SinkRecord, bytes]], most: int, most_bytes: int
) -> Iterator[Sequence[tuple[SinkRecord, bytes]]]:
    """Cut items, in their order, into batches of at most `most` items and `most_bytes`. A larger item is alone."""
    batch: list[tuple[SinkRecord, bytes]] = []
    size = 0
    for item in items:
        if batch and (len(batch) == most or size + len(item[1]) > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item[1])
    if batch:
        yield batch
