"""The event loop of a blocking client, in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from cloud_sdk.errors import ClientClosed

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a daemon thread. All calls raise `ClientClosed` once it is stopped, also those that wait
    then."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sluice-client", daemon=True)
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread.start()

    def run(self, coroutine: Coroutine[object, object, Result]) -> Result:
        """Run a coroutine on the loop and wait for its result."""
        future = self.start(coroutine)
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()  # its caller was interrupted (Ctrl-C)
            raise

    def start(self, coroutine: Coroutine[object, object, Result]) -> Future[Result]:
        """Start a coroutine on the loop."""
        with self._lock:
            if self._is_stopped:
                coroutine.close()
                raise _closed()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call a function on the loop, without waiting for it."""
        with self._lock:
            if self._is_stopped:
                raise _closed()
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancel what runs on the loop, and end the thread."""
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
    """Cancel all tasks of the loop, including gRPC's: asyncio logs an error for pending tasks of a closed loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
