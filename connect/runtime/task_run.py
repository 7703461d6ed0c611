"""One task at this worker, from its lease until it is given up: started, paused, restarted, and stopped in time."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any, Final

from connect.api import ConnectError, SinkConnector, SourceConnector, TransactionalSinkTask
from connect.runtime.entries import ConnectorEntry, TaskId
from connect.runtime.figures import Figures
from connect.runtime.job import Job, Runner
from connect.runtime.planning import Plan
from connect.runtime.sink_runner import SinkRunner
from connect.runtime.source_runner import SourceRunner
from connect.runtime.transactional_runner import TransactionalRunner
from connect.runtime.waiting import first_of

log = logging.getLogger(__name__)

_CANCEL_S: Final = 1.0  # between two attempts to cancel a task
_HANGS: Final = 10  # attempts after which a task is shown as failed

MakeJob = Callable[[TaskId, Plan, Figures], Job]
MakePlan = Callable[[ConnectorEntry], Plan]


class TaskRun:
    """A task of this worker. A task that fails or hangs has no effect on others."""

    def __init__(
        self,
        task: TaskId,
        entry: ConnectorEntry,
        make_plan: MakePlan,
        make_job: MakeJob,
        stop_s: float,
        on_state: Callable[[], None],
    ) -> None:
        """make_plan may block. stop_s: for a task to end by itself. on_state: called when the state is another one."""
        self.id = task
        self.state = "UNASSIGNED"  # Kafka Connect's: UNASSIGNED, RUNNING, PAUSED, FAILED
        self.error = ""  # why it has failed
        self._figures = Figures()
        self._wanted: ConnectorEntry | None = entry  # None: it is to end
        self._running = entry  # what the task was started with
        self._make_plan = make_plan
        self._make_job = make_job
        self._stop_s = stop_s
        self._on_state = on_state
        self._changed = asyncio.Event()
        self._job: Job | None = None
        self._work = asyncio.create_task(self._supervise(), name=f"{task.connector}-{task.number}")

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._work.done()

    def update(self, entry: ConnectorEntry) -> None:
        """Go on as the entry says."""
        if self._wanted is not None and entry.revision != self._wanted.revision:
            self._wanted = entry
            self._changed.set()

    def end(self, stop_s: float | None = None) -> None:
        """Begin to stop for good. stop_s: for the task to end by itself."""
        if self._wanted is not None or (stop_s is not None and stop_s < self._stop_s):
            self._stop_s = self._stop_s if stop_s is None else min(self._stop_s, stop_s)
            self._wanted = None
            self._changed.set()

    async def ended(self) -> None:
        """Wait until nothing of it runs any more."""
        await asyncio.wait((self._work,))

    def fields(self) -> dict[str, Any]:
        """For the heartbeat of the worker."""
        return {
            "connector": self.id.connector,
            "task": self.id.number,
            "state": self.state,
            "trace": self.error,
            "revision": self._running.revision,
            **self._figures.fields(),
        }

    async def _supervise(self) -> None:
        while (entry := self._wanted) is not None:
            self._changed.clear()
            self._running = entry
            if entry.state != "RUNNING":
                self._enter("PAUSED")
                await self._changed.wait()
                continue
            self._enter("RUNNING")
            work = asyncio.create_task(self._run(entry))
            await self._until_other(work)
            if not work.done():
                await self._stop(work)
            if work.done() and not work.cancelled() and (error := work.exception()) is not None:
                self._fail(error)
            if self._is_same():
                await self._until_other()

    async def _until_other(self, work: "asyncio.Task[None] | None" = None) -> None:
        """Wait until something else is wanted than what runs, or the work is done."""
        while self._is_same() and not (work is not None and work.done()):
            if work is None:
                await self._changed.wait()
            else:
                await first_of(work, self._changed)
            self._changed.clear()

    def _is_same(self) -> bool:
        """Whether what is wanted is what runs: a change of another task does not restart this one."""
        wanted, now = self._wanted, self._running
        return (
            wanted is not None
            and wanted.config == now.config
            and wanted.state == now.state
            and wanted.restarts_of(self.id.number) == now.restarts_of(self.id.number)
        )

    async def _run(self, entry: ConnectorEntry) -> None:
        plan = await asyncio.to_thread(self._make_plan, entry)
        if self.id.number >= len(plan.tasks):
            raise ConnectError(f"the connector has {len(plan.tasks)} tasks")
        self._figures.secrets = plan.secrets
        self._job = self._make_job(self.id, plan, self._figures)
        await _runner(self._job).run()

    async def _stop(self, work: "asyncio.Task[None]") -> None:
        """Let the task end by itself, then cancel it, again and again. It is waited for: it may still write."""
        loop = asyncio.get_running_loop()
        began, cancels = loop.time(), 0
        if self._job is not None:
            self._job.stopping.set()
        while not work.done():
            left = began + self._stop_s - loop.time()
            if self._job is None or left <= 0:
                cancels += 1
                work.cancel()
                left = _CANCEL_S
            if cancels == 1:
                log.warning("task %d of connector %s does not stop: it is cancelled", self.id.number, self.id.connector)
            if cancels == _HANGS:
                self._fail(ConnectError("the task does not stop, although it was cancelled"))
            self._changed.clear()  # `end` may shorten the time
            await first_of(work, self._changed, left)

    def _enter(self, state: str, error: str = "") -> None:
        is_same = (state, error) == (self.state, self.error)
        self.state, self.error = state, error
        if not is_same:
            self._on_state()

    def _fail(self, error: BaseException) -> None:
        self._figures.note(error)
        self._enter("FAILED", self._figures.text(error))
        log.error("task %d of connector %s has failed: %s", self.id.number, self.id.connector, self.error)
        if not isinstance(error, ConnectError):  # a traceback has the error in it, perhaps with a secret
            places = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s was raised here:\n%s", type(error).__name__, places)


def _runner(job: Job) -> Runner:
    connector = job.configuration.connector
    if isinstance(connector, SourceConnector):
        return SourceRunner(job)
    assert isinstance(connector, SinkConnector)
    return TransactionalRunner(job) if isinstance(connector.task(), TransactionalSinkTask) else SinkRunner(job)
