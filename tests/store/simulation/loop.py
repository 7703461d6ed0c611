"""An event loop on which a history replays exactly: time that passes when nothing else is to be done, and no thread
that runs beside it.

What the store gives to a thread of the executor or makes a thread for runs on the loop a little later, in an order
that the seed decides. The flush thread is a real one, but it has its turns only while the loop stands still.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import store.log.commitlog
import store.log.segments
import store.opening
import store.retention.compaction
import store.retention.removal
import store.retention.tiering
import store.tier.tier
from store.log.commitlog import Flush, PendingAppend
from tests.store.tier.memory_objects import Deflate

DELAYS = (0.0, 0.0, 0.0005, 0.002)  # seconds until what a thread would do is done


class Stuck(AssertionError):
    """Everybody waits and nothing will happen."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Is its own selector: nothing comes from outside."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._selector = self
        self._time = 0.0
        self._rng = rng

    def time(self) -> float:
        return self._time

    def select(self, timeout: float | None) -> list[object]:
        """Nothing is ready: time passes until the next timer."""
        if timeout is None:
            raise Stuck("nothing will ever happen again")
        self._time += timeout
        return []

    def soon(self, work: Callable[[], None]) -> None:
        """Do it after one of the delays."""
        self.call_later(self._rng.choice(DELAYS), work)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        done: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  it is told to whoever waits, as an executor does
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(result)

        self.soon(run)
        return done

    def _process_events(self, event_list: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class TurnQueue:
    """In place of the queue of the flush thread, which has a turn for each entry a little after it was put. The loop
    stands still meanwhile."""

    def __init__(self, loop: SimulatedLoop, on_flush: Callable[[list[PendingAppend]], None]) -> None:
        self._loop = loop
        self._on_flush = on_flush
        self._jobs: list[Flush | None] = []
        self._idle = threading.Semaphore(0)  # the thread waits for its turn
        self._turn = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def put(self, job: Flush | None) -> None:
        assert self._thread is None or self._thread.is_alive(), "the flush thread has ended"
        self._jobs.append(job)
        if job is None:
            self._finish()
        else:
            self._loop.soon(self._give_turn)

    def get(self) -> Flush | None:
        self._thread = threading.current_thread()
        self._idle.release()
        self._turn.acquire()
        return self._jobs.pop(0)

    def _give_turn(self) -> None:
        if self._jobs and self._jobs[0] is not None:
            self._on_flush(self._jobs[0].appends)
            self._idle.acquire()
            self._turn.release()
            self._idle.acquire()
            self._idle.release()

    def _finish(self) -> None:
        while self._jobs[0] is not None:
            self._give_turn()
        self._idle.acquire()
        self._turn.release()
        assert self._thread is not None
        self._thread.join()


class Deferred:
    """In place of a thread that prepares a segment: runs on the loop a little later, or when it is joined."""

    def __init__(
        self, loop: SimulatedLoop, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = ""
    ) -> None:
        self._loop = loop
        self._work: Callable[[], None] | None = lambda: target(*args)
        self.name = name

    def start(self) -> None:
        self._loop.soon(self.join)

    def join(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()


@contextmanager
def replayable(loop: SimulatedLoop, on_flush: Callable[[list[PendingAppend]], None]) -> Iterator[None]:
    """While it lasts, the store's threads and measured times are the loop's, names are those of every replay, and
    nothing is logged. `on_flush` is
    called with the appends that go to the disk next."""
    saved = store.log.commitlog.SimpleQueue, store.log.segments.threading
    timed = store.retention.removal, store.retention.compaction, store.retention.tiering, store.tier.tier
    times = [module.time for module in timed]
    queues = store.log.commitlog.native_queue
    store.log.commitlog.SimpleQueue = lambda: TurnQueue(loop, on_flush)  # type: ignore[assignment, misc]
    store.log.commitlog.native_queue = lambda _: None
    store.log.segments.threading = SimpleNamespace(  # type: ignore[assignment]
        Thread=lambda target, args, name: Deferred(loop, target, args, name),
        Event=threading.Event,
        Lock=threading.Lock,
    )
    for module in timed:
        module.time = SimpleNamespace(monotonic=loop.time, sleep=lambda _: None)  # type: ignore[attr-defined]
    names = Random(0)
    uuids = store.tier.tier.uuid
    store.tier.tier.uuid = SimpleNamespace(  # type: ignore[assignment]
        uuid4=lambda: SimpleNamespace(hex=f"{names.getrandbits(128):032x}")
    )
    codec = store.opening.Zstd
    store.opening.Zstd = Deflate  # type: ignore[assignment, misc]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        store.log.commitlog.native_queue = queues
        store.opening.Zstd = codec  # type: ignore[misc]
        store.tier.tier.uuid = uuids
        store.log.commitlog.SimpleQueue, store.log.segments.threading = saved  # type: ignore[misc]
        for module, its_time in zip(timed, times, strict=True):
            module.time = its_time  # type: ignore[attr-defined]
        logging.disable(level)
