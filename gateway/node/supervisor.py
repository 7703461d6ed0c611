"""Supervises one store and N gateways on one machine, or a node in one process, and workers of connectors: starts and
restarts their processes.

The rules of the file:

* This process serves nothing and has nothing that could fail: no loop, no threads, and only the sockets that reserve
  the ports. So a child is a fork, which imports what it needs.
* The store is ready before gateways start, and gateways stop before the store does. That of a clustered node is
  ready when it listens; its gateways wait for a node that leads.
* Workers start when the node is ready, and stop before it does. The node is ready without them.
* A child that ends is started again, after a longer pause each time that it did not live long. If a child fails before
  all of them were ready once, everything stops: the child has logged why.
* Each child has one end of a pipe. When this process is killed, the pipe closes and they stop.
* With the watchdog of systemd, the loop of each child writes a byte now and then. A child that is silent for too long
  is ended with SIGABRT, which makes it print where it hangs, or in the end with SIGKILL, and started again.
"""

import logging
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from gateway.config.config import Config, ConfigError
from gateway.config.reload import compare
from gateway.node.reloading import carry_out
from gateway.node.reserved_ports import ReservedPorts
from gateway.node.service_manager import ALIVE, BEATS, READY, STOPPING, tell_service_manager, watchdog_seconds
from store.data_folder import DRAINED

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.2  # seconds until a child is started again, doubled each time…
_LONGEST_PAUSE: Final = 10.0
_LONG_LIFE: Final = 30.0  # …unless it lived that long
_STOP_SECONDS: Final = 30.0  # for the gateways to stop, and again for the store, before they are killed
_MORE_S: Final = 15.0  # for a worker whose tasks have not stopped in time
_MAX_PATH: Final = 100  # bytes of the path of a Unix socket
_LINE: Final = 65_536  # maximum bytes of a ready line
_SOCKET: Final = "store.sock"
_LOCAL: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  where a process of this machine reaches a node

Serve = Callable[[Config, int, int], int]


class _CannotServe(Exception):
    """A child could not start, and has logged why."""


@dataclass(slots=True)
class _Child:
    """A process, running or to be started."""

    name: str
    config: Config
    serve: "Serve"
    pid: int = 0  # 0: it does not run
    output: int = -1  # descriptor that its ready line comes from
    line: bytes = b""  # the ready line as far as it has come
    is_ready: bool = False
    heard: float = 0.0  # monotonic seconds: when it last said that its loop runs
    is_aborted: bool = False  # it was silent for too long
    began: float = 0.0
    pause: float = _FIRST_PAUSE
    due: float = 0.0  # monotonic seconds: when to start it again

    def close_output(self) -> None:
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


class Supervisor:
    """Starts and watches the processes of a configuration with `split.gateways` or `connect.workers`, or of a clustered
    node."""

    def __init__(self, config: Config, serve: Serve, work: Serve) -> None:
        """serve: runs a child of the node with its configuration, the descriptor for its ready line, and its lifeline.
        work: runs a worker, likewise.

        Raises ConfigError, and OSError when an address cannot be reserved.
        """
        self._ports = ReservedPorts()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        config = deepcopy(config)
        self._is_clustered = bool(config.cluster.log)
        self._gateways: list[_Child] = []
        if config.split.gateways or self._is_clustered:
            self._ports.reserve_all(config)
            place = self._store_address(config.data_dir)
            self._store = _Child("store", _store(config, place), serve)
            numbers = range(1, max(1, config.split.gateways) + 1)
            self._gateways = [_Child(f"g{number}", _gateway(config, place, number), serve) for number in numbers]
        else:
            self._store = _Child("node", config, serve)
        numbers = range(1, config.connect.workers + 1)
        self._workers = [_Child(f"connect{number}", _worker(config, number), work) for number in numbers]
        (config.data_dir / DRAINED).unlink(missing_ok=True)  # a node that is started serves its clients
        self._wakeup = _signals()
        self._lifeline = os.pipe()
        self._is_ready = False  # all children have been ready once
        self._is_stopping = False
        self._watchdog_s = watchdog_seconds()
        self._checked = 0.0  # monotonic seconds: when it was last looked for children that hang

    def run(self) -> int:
        """Run until SIGTERM or SIGINT. Returns the exit code."""
        try:
            self._start(self._store)
            self._until_ready([self._store])
            for gateway in self._gateways:
                self._start(gateway)
            self._until_ready(self._gateways)
            self._is_ready = True
            if not self._is_stopping:
                print(self._ready_line(), flush=True)
                tell_service_manager(READY)
            for worker in self._workers if not self._is_stopping else ():
                worker.config.connect.host = worker.config.connect.host or self._grpc_address()
                self._start(worker)
            while not self._is_stopping:
                self._wait()
                self._restart_due(self._children)
        except _CannotServe:
            return 1
        finally:
            tell_service_manager(STOPPING)
            self._stop(self._workers)
            self._stop(self._gateways)
            self._stop([self._store])
            self._release()
        return 0

    # --- children

    @property
    def _children(self) -> list[_Child]:
        return [self._store, *self._gateways, *self._workers]

    def _start(self, child: _Child) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            self._run_child(child, reading, writing)
        os.close(writing)
        os.set_blocking(reading, False)
        child.pid, child.output, child.line, child.is_ready, child.is_aborted = pid, reading, b"", False, False
        child.began = monotonic()

    def _run_child(self, child: _Child, reading: int, writing: int) -> None:
        """Run the child. This is its process from here on."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the supervisor stops them
            os.close(reading)
            os.close(self._lifeline[1])
            for each in self._children:
                each.close_output()
            code = child.serve(child.config, writing, self._lifeline[0])
        except BaseException:
            log.exception("%s ended", child.name)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _until_ready(self, children: list[_Child]) -> None:
        """Wait until all children are ready. Raises _CannotServe."""
        while not self._is_stopping and not all(child.is_ready for child in children):
            self._wait()
            ended = [child for child in (self._store, *self._gateways) if not child.pid and child.due]
            if not self._may_wait(ended):
                raise _CannotServe
            self._restart_due(ended)

    def _may_wait(self, ended: list[_Child]) -> bool:
        """Whether the children that ended before all were ready once are started again. Gateways of a clustered node
        are: until a node leads they have no store."""
        return not ended or (self._is_clustered and self._store.is_ready and self._store not in ended)

    def _restart_due(self, children: list[_Child]) -> None:
        """Start those of the children whose pause is over."""
        for child in children:
            if not self._is_stopping and not child.pid and child.due <= monotonic():
                self._start(child)

    def _wait(self) -> None:
        """Wait for a signal, a ready line, the end of a child, or the time to start one again."""
        children = self._children
        outputs = {child.output: child for child in children if child.output >= 0}
        dues = [child.due - monotonic() for child in children if not child.pid and child.due]
        timeout = max(min(dues), 0.0) if dues else None
        if self._watchdog_s:
            timeout = min(self._watchdog_s / BEATS, timeout if timeout is not None else self._watchdog_s)
        readable, _, _ = select.select([self._wakeup[0], *outputs], [], [], timeout)
        for descriptor in readable:
            if descriptor == self._wakeup[0]:
                self._handle_signals(os.read(descriptor, 1024))
            else:
                self._read(outputs[descriptor])
        for child in children:
            self._reap(child)
        if self._watchdog_s:
            self._watch(children)

    def _watch(self, children: list[_Child]) -> None:
        """Tell systemd that this process runs, and end the children that hang."""
        now = monotonic()
        pause = self._watchdog_s / BEATS
        if now - self._checked < pause:
            return
        if now - self._checked > 2 * pause:  # this process did not run either: the whole machine may have stood still
            for child in children:
                child.heard = now
        self._checked = now
        if self._is_ready:
            tell_service_manager(ALIVE)
        for child in children:
            if child.pid and child.is_ready and now - child.heard > self._watchdog_s:
                log.critical("%s has not answered for %.0f seconds: it is ended", child.name, now - child.heard)
                child.heard = now
                os.kill(child.pid, signal.SIGKILL if child.is_aborted else signal.SIGABRT)
                child.is_aborted = True

    def _handle_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._is_stopping = True
            elif number == signal.SIGHUP:
                self._reload()

    def _reload(self) -> None:
        """Let all children read the configuration again. Those that are started later begin with it."""
        children = (self._store, *self._gateways)
        try:
            changes = compare(self._store.config)
        except ConfigError as error:
            log.error("the configuration stays as it is: %s", error)
            return
        if changes is not None:
            carry_out([child.config for child in children], changes)
        for child in children:
            if child.pid and child.is_ready:
                os.kill(child.pid, signal.SIGHUP)

    def _read(self, child: _Child) -> None:
        part = os.read(child.output, 4096)
        child.heard = monotonic()
        if not child.is_ready:
            child.line += part
        if b"\n" in child.line and not child.is_ready:
            child.line = child.line.partition(b"\n")[0]
            child.is_ready = True
            log.info("%s is ready, process %d", child.name, child.pid)
        if not part or len(child.line) > _LINE:
            child.close_output()

    def _reap(self, child: _Child) -> None:
        """Handle the end of a child, if it has ended."""
        if not child.pid:
            return
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if not pid:
            return
        lived = monotonic() - child.began
        child.pause = _FIRST_PAUSE if lived > _LONG_LIFE else min(child.pause * 2, _LONGEST_PAUSE)
        child.due = monotonic() + child.pause
        child.pid = 0
        child.close_output()
        if not self._is_stopping:
            code = os.waitstatus_to_exitcode(status)
            what = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if self._is_ready or self._may_wait([child]):
                log.error("%s %s: it is started again in %.1f seconds", child.name, what, child.pause)
            else:
                log.error("%s %s: the node cannot start", child.name, what)

    def _stop(self, children: list[_Child]) -> None:
        """Stop the children, and wait for them."""
        self._is_stopping = True
        for child in children:
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)
        until = monotonic() + max((_STOP_SECONDS, *(each.config.connect.stop_timeout_s + _MORE_S for each in children)))
        while any(child.pid for child in children):
            if monotonic() > until:
                for child in children:
                    if child.pid:
                        log.error("%s does not stop: it is killed", child.name)
                        os.kill(child.pid, signal.SIGKILL)
                until = float("inf")
            readable, _, _ = select.select([self._wakeup[0]], [], [], 0.2)
            if readable:
                os.read(self._wakeup[0], 1024)
            for child in children:
                self._reap(child)

    def _release(self) -> None:
        self._ports.release()
        if self._folder is not None:
            self._folder.cleanup()
        signal.set_wakeup_fd(-1)
        for descriptor in (*self._wakeup, *self._lifeline):
            os.close(descriptor)

    # --- addresses

    def _grpc_address(self) -> str:
        """Where workers on this machine reach the node."""
        line = (self._gateways[0] if self._gateways else self._store).line.decode()
        address = next(part.removeprefix("grpc=") for part in line.split() if part.startswith("grpc="))
        host, _, port = address.rpartition(":")
        return f"{_LOCAL.get(host, host)}:{port}"

    def _store_address(self, data_dir: Path) -> str:
        """The address of the store for the gateways."""
        path = data_dir.absolute() / _SOCKET
        if len(os.fsencode(path)) > _MAX_PATH:
            self._folder = tempfile.TemporaryDirectory(prefix="sluice-")
            path = Path(self._folder.name) / _SOCKET
        return f"unix:{path}"

    def _ready_line(self) -> str:
        """The ready line: the shared listeners of the gateways, and those of the store; or those of the node."""
        if not self._gateways:
            return self._store.line.decode()
        parts = self._gateways[0].line.decode().split()
        parts += [part for part in self._store.line.decode().split()[1:] if not part.startswith("store=")]
        return " ".join([*parts, f"gateways={len(self._gateways)}"])


def _store(config: Config, place: str) -> Config:
    own = deepcopy(config)
    own.split.role, own.split.listen, own.split.gateways = "store", place, 0
    own.grpc.port = -1
    return own


def _gateway(config: Config, place: str, number: int) -> Config:
    own = deepcopy(config)
    own.split.role, own.split.store, own.split.gateways = "gateway", [place], 0
    own.split.place, own.split.share_ports = f"g{number}", True
    if config.cluster.log:  # gateways of all nodes come to one store
        own.split.place = f"{config.cluster.name}.{own.split.place}"
    own.http.port = -1
    return own


def _worker(config: Config, number: int) -> Config:
    own = deepcopy(config)
    own.connect.name = own.connect.name and f"{own.connect.name}-{number}"
    return own


def _signals() -> tuple[int, int]:
    """Make a pipe that receives the numbers of signals."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, _ignore)
    return reading, writing


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the number is in the pipe."""
