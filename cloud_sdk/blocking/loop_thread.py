"""The event loop of a blocking client, in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from cloud_sdk.errors import ClientClosed

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a daemon thread. Whoever wants something of one that was stopped, or waits for it while it is
    stopped, is told with `ClientClosed`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sluice-client", daemon=True)
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread.start()

    def run(self, coroutine: Coroutine[object, object, Result]) -> Result:
        future = self.start(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()  # nobody waits for it any more (Ctrl-C)
            raise

    def start(self, coroutine: Coroutine[object, object, Result]) -> Future[Result]:
        with self._lock:
            if self._is_stopped:
                coroutine.close()
                raise _closed()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if self._is_stopped:
                raise _closed()
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            ended = asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop)
        ended.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _closed() -> ClientClosed:
    return ClientClosed("the client is closed")


async def _end_tasks() -> None:
    """End what still runs on the loop, gRPC's own tasks among it: asyncio complains of those that a loop leaves."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
