"""A worker: it takes leases of tasks, runs the tasks, and says so in its heartbeat.

The rules of the file, which keep a task from running at two workers:

* A task runs only while its lease names this worker. A lease is taken, and given back, by compare-and-set.
* A worker is declared dead by removing its heartbeat, by compare-and-set on the revision that an observer has seen for
  `dead_after_s`. A lease of a worker without a heartbeat is free. So nobody takes a lease of a worker that still beats,
  however old the state is that he has read.
* A worker whose last heartbeat began more than `stop_after_s` ago stops its tasks, well before others may declare it
  dead. Both are measured by one machine's monotonic clock each.
* A worker that was declared dead finds out at its next heartbeat, and goes on under another id.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from cloud_sdk import Client, ClientClosed, InvalidArgument, NotAllowed, RevisionConflict, SluiceError
from connect.plugins import CONNECTORS
from connect.runtime.entries import WORKER, Bucket, ConnectorEntry, LeaseEntry, Snapshot, TaskId, packed, read_snapshot
from connect.runtime.figures import Figures, error_text
from connect.runtime.job import Job
from connect.runtime.permissions import Permissions
from connect.runtime.placement import Observer, place
from connect.runtime.planning import Plan, plan
from connect.runtime.references import References
from connect.runtime.task_run import TaskRun

log = logging.getLogger(__name__)

_FENCED_STOP_S: Final = 4.0  # for tasks to end by themselves when others may soon take them
_LAST_BEAT_S: Final = 5.0  # for a worker that ends to tell so
_EARLY_S: Final = 1.0  # between two heartbeats at least, however often states of tasks change


@dataclass(slots=True, frozen=True)
class WorkerSettings:
    """How a worker works. Times are seconds."""

    name: str = ""  # of the worker, in its id; "": that of the host
    max_tasks: int = 64
    allowed_networks: Sequence[str] = ()
    allowed_folders: Sequence[str] = ()
    secret_folders: Sequence[str] = ()
    secret_variables: Sequence[str] = ()
    heartbeat_s: float = 5.0
    stop_after_s: float = 20.0
    dead_after_s: float = 30.0
    stop_timeout_s: float = 30.0  # for tasks to end by themselves


class Worker:
    """Runs tasks until it is told to stop."""

    def __init__(self, client: Client, bucket: Bucket, settings: WorkerSettings, version: str) -> None:
        """Raises ValueError for networks that are none."""
        self._client = client
        self._bucket = bucket
        self._settings = settings
        self._version = version
        self._permissions = Permissions(settings.allowed_networks, settings.allowed_folders)
        self._references = References(settings.secret_folders, settings.secret_variables)
        self._plugins = CONNECTORS.names()
        self._observer = Observer(settings.dead_after_s)
        self._stopping = asyncio.Event()
        self._has_news = asyncio.Event()  # a task has another state than the last heartbeat says
        self._id = self._new_id()
        self._revision = 0  # of the heartbeat
        self._beat = float("-inf")  # loop time at which the last heartbeat that was written began
        self._runs: dict[TaskId, TaskRun] = {}
        self._leases: dict[TaskId, int] = {}  # revision of each lease that was taken since the tasks were last stopped
        self._sizes: dict[str, tuple[int, int]] = {}  # revision of a connector's entry, and how many tasks it has

    @property
    def id(self) -> str:
        return self._id

    @property
    def running(self) -> Mapping[TaskId, TaskRun]:
        """The tasks that run here, or are still stopping."""
        return self._runs

    def stop(self) -> None:
        """Have `run` stop the tasks, give up the leases, and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop` is called. Raises `SluiceError` if the node refuses the worker."""
        helpers = [asyncio.create_task(each) for each in (self._keep_beating(), self._keep_fenced())]
        works = asyncio.create_task(self._keep_working())
        try:
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait((stop, works, *helpers), return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            works.cancel()
            await asyncio.wait((works,))
            for each in (works, *helpers):
                if each.done() and not each.cancelled():
                    each.result()  # raises
        finally:
            await self._end_tasks(self._settings.stop_timeout_s)
            for each in (works, *helpers):
                each.cancel()
            await asyncio.wait((works, *helpers))
            await self._say_goodbye()

    # --- heartbeats

    async def _keep_beating(self) -> None:
        least_s = min(_EARLY_S, self._settings.heartbeat_s)
        while True:
            self._has_news.clear()
            try:
                await self._write_heartbeat()
            except SluiceError as error:
                if not _may_pass(error):
                    raise
                log.warning("the heartbeat could not be written: %s", error_text(error))
            await asyncio.sleep(least_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat_s - least_s):
                    await self._has_news.wait()

    async def _write_heartbeat(self) -> None:
        began = asyncio.get_running_loop().time()
        heartbeat = {
            "host": socket.gethostname(),
            "version": self._version,
            "plugins": self._plugins,
            "tasks": [_without_zeros(each.fields()) for each in self._runs.values()],
        }
        try:
            self._revision = await self._bucket.put(WORKER + self._id, packed(heartbeat), revision=self._revision)
        except RevisionConflict as error:
            if error.revision:  # only this worker puts it: an earlier put was stored, although its call failed
                self._revision = error.revision
                await self._write_heartbeat()
                return
            log.warning("other workers have declared this one dead: it stops its tasks and goes on as a new one")
            self._id, self._revision, self._beat = self._new_id(), 0, float("-inf")
            self._fence()
        else:
            self._beat = began

    async def _keep_fenced(self) -> None:
        """Stop tasks when the heartbeat is too old. This waits for nothing else."""
        while True:
            if not self._is_alive():
                self._fence()
            await asyncio.sleep(min(1.0, self._settings.stop_after_s / 10))

    def _is_alive(self) -> bool:
        return asyncio.get_running_loop().time() - self._beat < self._settings.stop_after_s

    def _fence(self) -> None:
        """Stop all tasks soon. Each lease has to be taken anew."""
        self._leases.clear()
        for run in self._runs.values():
            run.end(_FENCED_STOP_S)

    def _new_id(self) -> str:
        return f"{self._settings.name or socket.gethostname()}-{secrets.token_hex(4)}"

    # --- tasks

    async def _keep_working(self) -> None:
        while True:
            try:
                if self._is_alive():
                    await self._work()
            except SluiceError as error:
                if not _may_pass(error):
                    raise
                log.warning("the state of connectors could not be read: %s", error_text(error))
            await asyncio.sleep(self._settings.heartbeat_s / 2)

    async def _work(self) -> None:
        """Look at the state once, and do what is to be done."""
        snapshot = await read_snapshot(self._bucket)
        for dead in self._observer.dead(snapshot.workers, asyncio.get_running_loop().time()):
            if dead.id != self._id and await self._bury(dead.id, dead.revision):
                del snapshot.workers[dead.id]
        if self._id not in snapshot.workers:
            return  # this worker was declared dead: the next heartbeat finds out
        kinds = await self._kinds(snapshot)
        self._follow(snapshot, kinds)
        await self._collect()
        placement = place(snapshot, self._id, kinds, self._settings.max_tasks)
        for task in placement.give_up:
            if task in self._runs:
                self._runs[task].end()
            else:  # left over from before the tasks were stopped
                await self._remove_lease(task, snapshot.leases[task].revision)
        mine = [task for task in kinds if _holder(snapshot, task) == self._id and task not in placement.give_up]
        for task in (*mine, *placement.take):
            if task not in self._runs:
                await self._take(task, snapshot.leases.get(task), snapshot.connectors[task.connector])
        await self._clean(snapshot, kinds)

    async def _bury(self, worker: str, revision: int) -> bool:
        """Declare a worker dead. Returns False if it is not."""
        try:
            await self._bucket.remove(WORKER + worker, revision=revision)
        except RevisionConflict:
            return False  # or another worker was first: the next look tells
        log.warning("the worker %s is dead: its tasks go on at others", worker)
        return True

    async def _kinds(self, snapshot: Snapshot) -> dict[TaskId, str]:
        """The kind of connector of each task that is to be run and that this worker can run."""
        kinds: dict[TaskId, str] = {}
        for entry in snapshot.connectors.values():
            kind = entry.config.get("connector.class", "")
            if kind not in self._plugins or entry.state == "STOPPED":
                continue
            if self._sizes.get(entry.name, (0, 0))[0] != entry.revision:
                self._sizes[entry.name] = (entry.revision, await asyncio.to_thread(self._size, entry))
            kinds.update((TaskId(entry.name, number), kind) for number in range(self._sizes[entry.name][1]))
        self._sizes = {name: size for name, size in self._sizes.items() if name in snapshot.connectors}
        return kinds

    def _size(self, entry: ConnectorEntry) -> int:
        """How many tasks a connector has. One that cannot be planned has one, which fails and says why."""
        try:
            return len(self._plan(entry).tasks)
        except Exception as error:  # noqa: BLE001  a plug-in's, of any kind
            log.warning("the connector %s cannot be planned: %s", entry.name, error_text(error))
            return 1

    def _plan(self, entry: ConnectorEntry) -> Plan:
        return plan(entry.name, entry.config, self._references)

    def _follow(self, snapshot: Snapshot, kinds: Mapping[TaskId, str]) -> None:
        """Let tasks do what their connector is to do now, and end those that are not this worker's any more."""
        for task, run in self._runs.items():
            lease = snapshot.leases.get(task)
            if task not in kinds or lease is None or lease.worker != self._id:
                run.end()
            else:
                run.update(snapshot.connectors[task.connector])

    async def _collect(self) -> None:
        """Give up the leases of tasks that have ended."""
        for task in [task for task, run in self._runs.items() if run.is_over]:
            del self._runs[task]
            self._has_news.set()
            await self._release(task)

    async def _release(self, task: TaskId) -> None:
        revision = self._leases.pop(task, None)
        if revision is not None:
            await self._remove_lease(task, revision)

    async def _remove_lease(self, task: TaskId, revision: int) -> None:
        try:
            await self._bucket.remove(task.lease, revision=revision)
        except RevisionConflict:
            log.debug("the lease of task %s is another worker's by now", task)

    async def _take(self, task: TaskId, lease: LeaseEntry | None, entry: ConnectorEntry) -> None:
        """Take a lease, and run its task. A lease that names this worker is taken as well: it may be left over from a
        call whose outcome was not known, or from before the tasks were stopped."""
        worker = self._id
        try:
            revision = 0 if lease is None else lease.revision
            revision = await self._bucket.put(task.lease, packed({"worker": worker}), revision=revision)
        except RevisionConflict:
            return  # another worker was first
        if worker != self._id or not self._is_alive() or self._stopping.is_set():
            await self._remove_lease(task, revision)
            return
        self._leases[task] = revision
        stop_s = self._settings.stop_timeout_s
        self._runs[task] = TaskRun(task, entry, self._plan, self._job, stop_s, self._has_news.set)

    def _job(self, task: TaskId, made: Plan, figures: Figures) -> Job:
        return Job(
            task,
            self._client,
            self._bucket,
            made.configuration,
            made.tasks[task.number],
            len(made.tasks),
            self._permissions,
            figures,
        )

    async def _clean(self, snapshot: Snapshot, kinds: Mapping[TaskId, str]) -> None:
        """Remove leases that mean nothing: the task is no more, and no worker holds it."""
        for task, lease in snapshot.leases.items():
            entry = snapshot.connectors.get(task.connector)
            is_gone = entry is None or entry.state == "STOPPED"
            is_known = entry is not None and entry.config.get("connector.class") in self._plugins
            if (is_gone or (is_known and task not in kinds)) and lease.worker not in snapshot.workers:
                await self._remove_lease(task, lease.revision)

    # --- the end

    async def _end_tasks(self, stop_s: float) -> None:
        for run in self._runs.values():
            run.end(stop_s)
        if self._runs:
            ends = [asyncio.ensure_future(run.ended()) for run in self._runs.values()]
            await asyncio.wait(ends, timeout=stop_s + 2 * _LAST_BEAT_S)

    async def _say_goodbye(self) -> None:
        """Give up the leases and the heartbeat, so that others need not wait."""
        try:
            async with asyncio.timeout(_LAST_BEAT_S):
                await self._collect()
                if not self._runs and self._revision:
                    await self._remove_heartbeat()
        except (SluiceError, TimeoutError) as error:
            log.warning("the leases could not be given up, and end later: %s", error_text(error))

    async def _remove_heartbeat(self) -> None:
        try:
            await self._bucket.remove(WORKER + self._id, revision=self._revision)
        except RevisionConflict as error:
            if error.revision:  # the last put was cancelled, and stored all the same
                await self._bucket.remove(WORKER + self._id, revision=error.revision)


def _without_zeros(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a heartbeat says of a task: most figures are 0, and each heartbeat is a record of the log."""
    return {name: value for name, value in fields.items() if value or name in ("task", "trace")}


def _holder(snapshot: Snapshot, task: TaskId) -> str | None:
    lease = snapshot.leases.get(task)
    return None if lease is None else lease.worker


def _may_pass(error: SluiceError) -> bool:
    """Whether the worker goes on in spite of an error of the node."""
    return not isinstance(error, (ClientClosed, InvalidArgument, NotAllowed))
