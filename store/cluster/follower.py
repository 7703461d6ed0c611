"""The store of a node that follows a shared log. It folds what others wrote, and removes what the log lets go."""

import asyncio
import logging
from contextlib import suppress

from store.api import Appended
from store.config import StoreConfig
from store.errors import StoreClosed, StoreError, TierUnavailable
from store.local_store import LocalStore
from store.log.writer import SealedBatch
from store.opening import OpenedStore
from store.retention.local_files import LocalFiles

logger = logging.getLogger(__name__)


class Follower(LocalStore):
    """A copy of a shared log that only `apply` adds to. Call its methods only on the loop that created it."""

    def __init__(self, opened: OpenedStore, config: StoreConfig, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(opened, config, loop)
        self._check_s = config.retention_check_s
        self._local_files: LocalFiles | None = None
        self._tiered = self._segments.tiered  # what was in the tier when files were removed last
        if self._tier is not None:
            self._local_files = LocalFiles(
                opened.config,
                self._segments,
                self._views,
                self._tier,
                self._removal,
                self._stopped,
                _wait_for_nothing,
                True,
            )
        self._is_due = asyncio.Event()  # files are to be removed, or a stop
        self._removing: asyncio.Task[None] | None = None

    def change_retention(self, config: StoreConfig) -> None:
        super().change_retention(config)
        if self._local_files is not None:
            self._local_files.change(self._config)
            self._is_due.set()

    async def start(self) -> None:
        """Start what happens by itself. Raises `StoreError` and OSError."""
        if self._removal.is_due:  # the process ended between the log's decision and the removal
            await self._removal.keep_held(self._views.begin)
        self._is_due.set()  # a removal may have ended halfway
        self._removing = self._loop.create_task(self._remove_forever())

    async def apply(self, batch: SealedBatch) -> None:
        """Write and fold the next batch of the log. One call at a time. Raises `StoreError` if the log has failed."""
        answer: asyncio.Future[Appended] = self._loop.create_future()

        def done(appended: Appended) -> None:
            if not answer.cancelled():
                answer.set_result(appended)

        self._log.apply(batch, done)
        error = (await answer).error
        if error is not None:
            raise error

    async def end(self) -> None:
        """Stop, and checkpoint the views. The files stay open for somebody else."""
        self._stopped.set()
        self._is_due.set()
        if self._removing is not None:
            await self._removing
        await self._end_log()

    async def close(self) -> None:
        await self.end()
        await self._loop.run_in_executor(None, self._close_files)

    def _after_batch(self, _: SealedBatch) -> None:
        if self._removal.is_due or self._segments.tiered is not self._tiered:
            self._is_due.set()

    async def _remove_forever(self) -> None:
        while True:
            with suppress(TimeoutError):  # the disk may get full, or the tier answer
                async with asyncio.timeout(None if self._local_files is None else self._check_s):
                    await self._is_due.wait()
            if self._stopped.is_set():
                return
            self._is_due.clear()
            self._tiered = self._segments.tiered
            try:
                await self._removal.remove()
                if self._local_files is not None:
                    with suppress(StoreClosed, TierUnavailable):  # the tier has said so
                        await self._local_files.remove()
                await self._removal.drop_generations(self._pause)
            except (StoreError, OSError):
                logger.exception("segments could not be removed; the next try is in %g s", self._check_s)
                await self._pause(self._check_s)
                self._is_due.set()

    async def _pause(self, seconds: float) -> None:
        """Sleep, or until the stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)


async def _wait_for_nothing() -> None:
    """A follower appends no records about held messages. Those that it folds name records, and need no file."""
