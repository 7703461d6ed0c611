"""Starts a coroutine at once, and makes a task only of one that has to wait: a task costs more than a short coroutine.

Python 3.12 has this as `asyncio.eager_task_factory`. Here the coroutine has no current task until it first waits, so it
may not use `asyncio.timeout` before that.
"""

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any


def start_eagerly(coroutine: Coroutine[Any, None, None], spawn: Callable[[Coroutine[Any, None, None]], None]) -> None:
    """Run the coroutine up to its end, or to where it first waits; `spawn` makes a task of the rest."""
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return
    spawn(_Rest(coroutine, awaited))


class _Rest(Coroutine[Any, None, None]):
    """A coroutine that waits already. Its task is told what for, as if the coroutine had just come to it."""

    __slots__ = ("_awaited", "_coroutine", "_is_told")

    def __init__(self, coroutine: Coroutine[Any, None, None], awaited: object) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._is_told = False

    def send(self, value: None) -> object:
        if self._is_told:
            return self._coroutine.send(value)
        self._is_told = True
        awaited, self._awaited = self._awaited, None
        return awaited

    def throw(
        self, kind: Any, error: BaseException | object = None, trace: TracebackType | None = None
    ) -> object:  # typed as in the base class
        return self._coroutine.throw(kind) if error is None else self._coroutine.throw(kind, error, trace)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, None]:
        return self._coroutine.__await__()
