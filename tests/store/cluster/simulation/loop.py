"""A simulated loop that several nodes share, each of which can stand still for a while, or for good."""

from asyncio import Handle, Task, TimerHandle
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import Any

from tests.store.simulation.loop import SimulatedLoop

_process: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """What runs in it stands still while it is `stopped`: its timers ring late, and answers wait."""

    def __init__(self, loop: "ClusterLoop") -> None:
        self.stopped = False
        self._loop = loop
        self._context = Context()
        self._context.run(_process.set, self)
        self._held: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []
        self._tasks: list[Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Task[Any]:
        """Run it in this process."""
        task = Task(work, loop=self._loop, context=self._context)
        self._tasks.append(task)
        return task

    def resume(self) -> None:
        """Go on with what has waited, in its order."""
        self.stopped = False
        held, self._held = self._held, []
        for callback, args, context in held:
            self._loop.call_soon(callback, *args, context=context)

    def end(self) -> list[Task[Any]]:
        """Cancel what runs in it, when nobody looks any more. Returns its tasks."""
        for task in self._tasks:
            task.cancel()
        self.resume()
        return self._tasks

    def step(self, context: Context, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.stopped:
            self._held.append((callback, args, context))
            return
        self._loop.running = self
        try:
            callback(*args)
        finally:
            self._loop.running = None


class ClusterLoop(SimulatedLoop):
    """Asks the process of a callback before it is called."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.outside = Context()  # of what belongs to no process
        self.running: Process | None = None  # whose callback is called

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        process = _process.get() if context is None else context.get(_process)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        context = context or process._context
        return super().call_soon(process.step, context, callback, args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """A flush thread has no context, but its turn while a callback of its process is called."""
        if context is None and self.running is not None:
            context = self.running._context
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        process = _process.get() if context is None else context.get(_process)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        context = context or process._context
        return super().call_at(when, process.step, context, callback, args, context=context)
