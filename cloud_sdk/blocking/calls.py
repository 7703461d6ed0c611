"""Blocking calls of asyncio objects, which live on the loop of a `LoopThread`."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from cloud_sdk.blocking.loop_thread import LoopThread
from cloud_sdk.errors import ClientClosed
from cloud_sdk.lifetime.closing import Closable, HandlerCaller
from cloud_sdk.message import Message

Arguments = ParamSpec("Arguments")
Inner_co = TypeVar("Inner_co", covariant=True)
ClosableInner = TypeVar("ClosableInner", bound=Closable)
HandlingInner = TypeVar("HandlingInner", bound=HandlerCaller)
Result = TypeVar("Result")


class Blocking(ABC, Generic[Inner_co]):
    """An asyncio object of the SDK, as a context manager whose calls block."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def _opened(self) -> tuple[LoopThread, Inner_co]:
        """Return the thread and the asyncio object. Raises `ClientClosed`."""


def blocking(
    method: Callable[Concatenate[Inner_co, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Blocking[Inner_co], Arguments], Result]:
    """Turn a method of an asyncio class into one that blocks, with the same signature and docstring."""

    @wraps(method)
    def call(self: Blocking[Inner_co], /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        thread, inner = self._opened()
        return thread.run(method(inner, *arguments, **options))

    return call


class BlockingPart(Blocking[Inner_co]):
    """A part of a client that is open."""

    def __init__(self, thread: LoopThread, inner: Inner_co) -> None:
        self._thread = thread
        self._inner = inner

    def _opened(self) -> tuple[LoopThread, Inner_co]:
        return self._thread, self._inner


class ClosablePart(BlockingPart[ClosableInner]):
    """A part of a client that is closed at the end of its block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """See `close` of the class of `cloud_sdk` with the same name."""
        with suppress(ClientClosed):  # the client has closed it
            self._thread.run(self._inner.close())


class HandlingPart(ClosablePart[HandlingInner]):
    """A part of a client that calls handlers in threads of its own while it is open."""

    def __init__(self, thread: LoopThread, inner: HandlingInner, executor: ThreadPoolExecutor) -> None:
        super().__init__(thread, inner)
        self._executor = executor

    def __enter__(self) -> Self:
        self._thread.run(self._start())
        return self

    def close(self) -> None:
        """See `close` of the class of `cloud_sdk` with the same name."""
        super().close()
        self._executor.shutdown(wait=not self._inner.is_called_from_handler)

    async def _start(self) -> None:
        await self._inner.__aenter__()


def in_threads(
    handler: Callable[[Message], Result], executor: ThreadPoolExecutor
) -> Callable[[Message], Coroutine[Any, Any, Result]]:
    """Turn a handler into an async one, which runs it in a thread of the executor."""

    async def handle(message: Message) -> Result:
        call = partial(copy_context().run, handler, message)  # with the mark of `cloud_sdk.lifetime.closing`
        return await asyncio.get_running_loop().run_in_executor(executor, call)

    return handle
