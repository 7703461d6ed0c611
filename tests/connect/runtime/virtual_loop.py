"""An event loop with a clock of its own: when everybody waits, the time is at once that of the next timer."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Moves the clock in place of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now += timeout
        return super().select(0 if timeout is not None else 0.1)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs what other loops run in threads at once: no time passes meanwhile."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, _executor: Any, call: Callable[..., Any], *given: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        done = self.create_future()
        try:
            done.set_result(call(*given))
        except Exception as error:  # noqa: BLE001  the caller gets it
            done.set_exception(error)
        return done
